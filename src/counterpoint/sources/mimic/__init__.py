"""Build a table of stays, blocs and doses from the raw tables of MIMIC-III, to be read like any user's table."""
