ALTER TABLE model_calls DROP COLUMN held_out;
