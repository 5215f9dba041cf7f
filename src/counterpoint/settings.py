"""Settings that mean something: every field of a recipe has its type and lies in its range, or is refused in one line.

    steps: Positive = 3000        a whole number of 1 or more
    real_share: Share = 0.5       a number from 0 to 1
"""

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from counterpoint.errors import CounterpointError

MANY = 10**8
"""More updates, rows or widths than this are a slip of the hand."""


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, `low` itself left out where it is `open`."""

    low: float
    high: float
    open: bool = False

    def holds(self, value: float) -> bool:
        return (self.low < value if self.open else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        return f"{'above' if self.open else 'from'} {self.low:g} to {self.high:g}"


Positive = Annotated[int, Range(1, MANY)]
Count = Annotated[int, Range(0, MANY)]
Share = Annotated[float, Range(0, 1)]
Weight = Annotated[float, Range(0, 1e6)]
Amount = Annotated[float, Range(0, 1e6, open=True)]
Rate = Annotated[float, Range(0, 10, open=True)]
Fraction = Annotated[float, Range(0, 1, open=True)]
Finite = Annotated[float, Range(-1e12, 1e12)]
Widths = tuple[Annotated[int, Range(1, 100_000)], ...]


def check_settings(recipe: Any) -> None:
    """Raise one line that names the first field which is of another type, or out of its range."""
    for name, hint in _hints(type(recipe)).items():
        wrong = _wrong(getattr(recipe, name), hint)
        if wrong:
            raise CounterpointError(f"{name}={_shown(getattr(recipe, name))} of {type(recipe).__name__} is not {wrong}")


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else type(value).__name__


def _wrong(value: Any, hint: Any) -> str:
    """What the value should have been, or nothing."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _wrong(value, arguments[0]) or _outside(value, arguments[1:])
    if origin in (Union, types.UnionType):
        said = [_wrong(value, each) for each in arguments]
        return " or ".join(said) if all(said) else ""
    if origin is Literal:
        return "" if value in arguments else f"one of {', '.join(map(repr, arguments))}; pick one"
    if origin is tuple:
        return _wrong_tuple(value, arguments)
    return _wrong_kind(value, hint)


def _outside(value: Any, metadata: tuple[Any, ...]) -> str:
    ranges = [each for each in metadata if isinstance(each, Range) and not each.holds(value)]
    return f"a number {ranges[0]}; give one in that range" if ranges else ""


def _wrong_tuple(value: Any, arguments: tuple[Any, ...]) -> str:
    if not isinstance(value, tuple):
        return "a tuple; write (…,)"
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return next((said for said in (_wrong(item, arguments[0]) for item in value) if said), "")
    if len(arguments) != len(value):
        return f"a tuple of {len(arguments)}; give as many"
    return next((said for said in map(_wrong, value, arguments) if said), "")


def _wrong_kind(value: Any, hint: Any) -> str:
    if hint is int:
        return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number; give one"
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return "" if number else "a finite number; give one"
    if not isinstance(hint, type) or hint is Callable:
        return ""
    return "" if isinstance(value, hint) else f"a {hint.__name__}; give one"
