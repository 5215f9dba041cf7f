"""What can be done, what it is worth, and simulators that know the truth."""

from counterpoint.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
