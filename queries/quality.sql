-- Text worth training on: neither tiny nor huge, and not written by a program.
-- NULL is neither true nor false, so rows whose size or text is NULL are out.
-- Parameters: $min_size and $max_size, in bytes; 500 and 100000 suit source code.
-- Columns: size, text.
SELECT *
FROM dataset
WHERE size BETWEEN $min_size AND $max_size
    AND text NOT LIKE '%DO NOT EDIT%'
    AND text NOT LIKE '%@generated%'
