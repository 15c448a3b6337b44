"""The Hugging Face Hub: names of datasets to files at a commit, as `datasets` finds them.

`places` reads what a user writes, `settings` the environment, `client` asks the Hub, `repository` gathers what is in
a repository (or in its downloaded copy), `card` reads what its card says, and `resolve` puts them together by the rules
of `patterns`, `globs` and `formats`. The files are then read by the Hub's store in the core, which calls no API.

Nothing of Hugging Face is needed for it; PyYAML, for cards that have configs.
"""
