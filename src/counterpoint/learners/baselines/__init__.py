"""Baselines of the paper and of the field."""
