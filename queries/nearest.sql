-- The rows whose embeddings are nearest to a vector, and how near, the nearest first.
-- Parameters: $vector, of the embeddings' length, and $count, how many rows.
-- Vectors without a direction, which are zero or hold a NaN, come last; rows without a vector are out.
-- Columns: embedding, a list of floats.
SELECT *, cosine_similarity(embedding, $vector) AS similarity
FROM dataset
WHERE embedding IS NOT NULL
ORDER BY isnan(similarity), similarity DESC NULLS LAST
LIMIT $count
