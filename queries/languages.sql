-- A mix of languages, the rarer ones whole and the commonest one thinned to its larger files.
language IN ('c', 'markdown')
OR (language = 'rust' AND size > 2000)
