DROP TABLE work_counts;
