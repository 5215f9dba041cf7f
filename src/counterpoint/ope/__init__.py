"""What a policy is worth, from the log of others alone: estimators, how sure they are, and when they cannot know."""

from counterpoint.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
