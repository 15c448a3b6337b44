-- One row in a hundred, the same ones in every run; other numbers give other shares and other samples.
-- Parameters: none.
-- Columns: any.
SELECT *
FROM dataset TABLESAMPLE BERNOULLI (1) REPEATABLE (42)
