DROP TABLE item_keys;
