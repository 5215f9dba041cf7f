"""Logged data: transitions, their schema, files, and readers of users' tables."""

from counterpoint.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
