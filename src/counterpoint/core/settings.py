"""Settings that mean something: every field of a recipe has its type and lies in its range, or is refused in one line.

steps: Positive = 3000        a whole number of 1 or more
real_share: Share = 0.5       a number from 0 to 1
"""

import math
import types
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from counterpoint.core.errors import CounterpointError

P = ParamSpec("P")
R = TypeVar("R")
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


class Checked:
    """Base class of dataclasses that check the types and ranges of their fields when they are created."""

    def __post_init__(self) -> None:
        check_settings(self)


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose arguments are of the types it asks for: another is one line, not a traceback from inside."""
    hints: dict[str, Any] = {}

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if not hints:
            hints.update(get_type_hints(function, include_extras=True))
        positional = zip(_names(function), args, strict=False)
        for name, value in (*positional, *kwargs.items()):
            wrong = _wrong(value, hints[name]) if name in hints else ""
            if wrong:
                raise CounterpointError(f"{name}={_shown(value)} of {function.__name__} is not {wrong}")
        return function(*args, **kwargs)

    return called


@cache
def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, parameter in signature(function).parameters.items() if parameter.kind in kinds)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else type(value).__name__


def _wrong(value: Any, hint: Any) -> str:
    """Return what the value should have been, or nothing where it is right."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _wrong(value, arguments[0]) or _outside(value, arguments[1:])
    if origin in (Union, types.UnionType):
        kinds = [_wrong(value, kind) for kind in arguments if kind is not type(None)]
        if (value is None and type(None) in arguments) or not all(kinds):
            return ""
        return " or ".join(kinds) + " or None" * (type(None) in arguments)
    if origin is Literal:
        listed = any(type(value) is type(choice) and value == choice for choice in arguments)
        return "" if listed else f"one of {', '.join(map(repr, arguments))}; pick one"
    if origin is tuple:
        return _wrong_tuple(value, arguments)
    return _wrong_kind(value, hint)


def _outside(value: Any, metadata: tuple[Any, ...]) -> str:
    ranges = [limits for limits in metadata if isinstance(limits, Range) and not limits.holds(value)]
    return f"a number {ranges[0]}; give one in that range" if ranges else ""


def _wrong_tuple(value: Any, arguments: tuple[Any, ...]) -> str:
    if not isinstance(value, tuple):
        return "a tuple; write (…,)"
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return next(filter(None, (_wrong(item, arguments[0]) for item in value)), "")
    if len(arguments) != len(value):
        return f"a tuple of {len(arguments)}; give as many"
    return next(filter(None, map(_wrong, value, arguments)), "")


def _wrong_kind(value: Any, hint: Any) -> str:
    if hint is int:
        return "" if isinstance(value, Integral) and not isinstance(value, bool) else "a whole number; give one"
    if hint is float:
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        return "" if number else "a finite number; give one"
    origin = get_origin(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return ""
    if origin is abc.Callable:
        return "" if callable(value) else "a function; give one"
    if origin is abc.Sequence and isinstance(value, abc.Sequence) and get_args(hint) != (str,):
        return next(filter(None, (_wrong(item, get_args(hint)[0]) for item in value)), "")
    kind = getattr(hint, "array_type", origin or hint)  # Of an array with a shape, the array.
    if not isinstance(kind, type) or _is_mute(kind):
        return ""
    return "" if isinstance(value, kind) else f"{_article(kind.__name__)}; give one"


def _is_mute(kind: type) -> bool:
    """A protocol that does not say whether something follows it."""
    return getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)


def _article(name: str) -> str:
    return f"an {name}" if name[:1] in "AEIOU" else f"a {name}"
