-- Licences that let one choose MIT or Apache-2.0; a licence that is not known is out, as NULL is neither true nor false.
(licence LIKE '%MIT%' OR licence LIKE '%Apache-2.0%')
AND licence NOT LIKE '%GPL%'
