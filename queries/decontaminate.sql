-- Rows that are not in a test set: those whose hash is in none of its rows.
-- Parameters: none.
-- Tables: banned (hash), any number of rows for a hash.
-- Columns: hash.
SELECT *
FROM dataset
WHERE NOT EXISTS (SELECT 1 FROM banned WHERE banned.hash = dataset.hash)
