DROP TABLE warmings;
