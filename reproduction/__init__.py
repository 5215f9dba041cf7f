"""Grids of cells: method × data × seed."""
