-- Text worth training on: neither tiny nor huge, and not written by a program. NULL text is out.
size BETWEEN 500 AND 100000
AND text NOT LIKE '%DO NOT EDIT%'
AND text NOT LIKE '%@generated%'
