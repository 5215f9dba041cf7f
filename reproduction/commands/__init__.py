"""Commands of `python -m reproduction`."""
