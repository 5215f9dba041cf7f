"""Counterpoint: structural causal models, counterfactual rows and policies from logged decisions."""

from counterpoint.core.lazy import attach
from counterpoint.core.version import VERSION

__version__ = VERSION
__getattr__, __dir__, __all__ = attach(__name__, __file__)
