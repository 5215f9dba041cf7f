"""Off-policy evaluation: estimators of a policy's mean return from logged data, with intervals and a verdict."""

from counterpoint.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
