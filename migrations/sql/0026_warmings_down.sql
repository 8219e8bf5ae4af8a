ALTER TABLE views DROP COLUMN warmed_at;
DROP TABLE warmings;
