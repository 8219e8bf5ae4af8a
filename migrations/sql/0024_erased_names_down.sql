DROP TABLE erased_names;
