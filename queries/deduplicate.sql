-- One row for each hash: the largest, and of equal ones the first by path.
-- Rows whose hash is NULL count as equal; add WHERE hash IS NOT NULL to leave them out.
-- Parameters: none.
-- Columns: hash, size, path.
SELECT DISTINCT ON (hash) *
FROM dataset
ORDER BY hash NULLS LAST, size DESC NULLS LAST, path
