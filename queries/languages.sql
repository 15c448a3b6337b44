-- A mix of languages: of each as many rows as a table asks for, the largest first, and none of other languages.
-- Parameters: none.
-- Tables: mix (language, num_rows), a row for each language.
-- Columns: language, size, path.
SELECT dataset.*
FROM dataset
JOIN mix ON dataset.language = mix.language
QUALIFY row_number() OVER (PARTITION BY dataset.language ORDER BY size DESC NULLS LAST, path) <= num_rows
