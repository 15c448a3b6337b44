-- From short to long: the order of a curriculum. Read it without `shuffle`, which has an order of its own.
-- Parameters: $max_size, in bytes.
-- Columns: size, path.
SELECT *
FROM dataset
WHERE size <= $max_size
ORDER BY size, path
