"""Checks of a fitted model's assumptions, of its support in the log, and their findings."""
