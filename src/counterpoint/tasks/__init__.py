"""Decision problems: actions, reward and end of an episode; simulators with known structural equations."""

from counterpoint.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
