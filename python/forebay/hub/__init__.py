"""The Hugging Face Hub: resolves names of datasets to files at a commit, as `datasets` does.

`places` parses what users write, `settings` reads the environment, `client` sends requests to the Hub, each by
`transport`, and `errors` are its refusals. `repository` lists a repository (or its downloaded copy), `card` reads its
card, with the rows and columns that are `kept`, and `resolve` combines them by the rules of `patterns`, `globs` and
`formats`. The files are then read by the Hub's store in the core, which calls no API.

No package of Hugging Face is needed; PyYAML is, for cards that have configs.
"""
