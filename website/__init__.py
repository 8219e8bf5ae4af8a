"""The site: the pages of `docs/` and the README, as HTML with a search, a reference of the API, and `llms.txt`."""
