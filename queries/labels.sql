-- Rows with their labels, which come from another table; rows without one are out.
-- Parameters: none.
-- Tables: labels (path, label), at most one row for a path.
-- Columns: path.
SELECT dataset.*, labels.label
FROM dataset
JOIN labels ON dataset.path = labels.path
