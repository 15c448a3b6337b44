-- Rows under licences that let one choose MIT or Apache-2.0.
-- A licence that is not known is out, as NULL is neither true nor false.
-- Parameters: none.
-- Columns: licence.
SELECT *
FROM dataset
WHERE (licence LIKE '%MIT%' OR licence LIKE '%Apache-2.0%')
    AND licence NOT LIKE '%GPL%'
