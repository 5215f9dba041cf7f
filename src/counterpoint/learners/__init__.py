"""What learns a policy from logged transitions."""

from counterpoint.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
