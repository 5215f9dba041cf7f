"""Readers of public clinical databases."""
