"""Errors against known truth that only the reproduction measures."""
