"""From the raw tables of an intensive care database to a table of stays, blocs and doses that the loader reads."""
