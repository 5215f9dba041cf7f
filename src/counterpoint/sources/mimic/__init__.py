"""From the raw tables of an intensive care database to a table of stays, blocs and doses that the loader reads.

It stands above `tasks`, whose scores and reward of a septic patient it shares, and below all that learns: what it makes
is a table like any other user's.
"""
