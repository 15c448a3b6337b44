-- The best rows of each cluster, so that no cluster outweighs the others.
-- Parameters: $count, how many of each.
-- Columns: cluster, score, path.
SELECT *
FROM dataset
QUALIFY row_number() OVER (PARTITION BY cluster ORDER BY score DESC NULLS LAST, path) <= $count
