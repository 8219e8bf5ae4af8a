DROP TABLE search;
DROP TABLE search_heads;
