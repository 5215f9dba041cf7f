"""Settings of a recipe as a table; tensors are shown by their size only, because they may hold subjects' numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from counterpoint.core.artifacts import Artifact
from counterpoint.data.layout import Layout
from counterpoint.data.spaces import Box, Discrete, describe
from counterpoint.page.cells import PageTable

KIND = "kind"
LONGEST = 400
"""Characters of a value that are shown, at most."""


def settings_table(caption: str, recipe: Any) -> PageTable:
    """Table of all settings of a recipe."""
    return PageTable(caption, ("Setting", "Value"), tuple(lines_of(KIND, recipe)), (0, 1))


def lines_of(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the value of every setting inside a recipe."""
    inner = _inside(value)
    if not isinstance(value, Mapping) and not (inner and type(value) in (tuple, list)):
        yield name, _shortened(_text(value))
    for key, part in inner.items():
        yield from lines_of(key if name == KIND else f"{name}.{key}", part)


def _inside(value: Any) -> dict[str, Any]:
    """Settings inside a value; empty if it is shown in one line."""
    if value is None or isinstance(value, str | int | float | Tensor | Artifact | Discrete | Box):
        return {}
    if isinstance(value, Layout):
        return {**_fields(value), "categorical": tuple(name for name, _ in value.categorical)}
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, tuple | list):
        nested = any(_fields(part) for part in value)
        return {str(i + 1): part for i, part in enumerate(value)} if nested else {}
    return _fields(value)


def _fields(value: Any) -> dict[str, Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(vars(value)) if hasattr(value, "__dict__") and not callable(value) else {}


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{' × '.join(map(str, value.shape)) or '1'} numbers"
    if isinstance(value, Artifact):
        return f"a fitted {type(value).__name__}"
    if isinstance(value, Discrete | Box):
        return describe(value)
    if isinstance(value, tuple | list):
        nested = any(isinstance(part, tuple | list) for part in value)
        return ("; " if nested else ", ").join(map(_text, value)) or "none"
    if value is None or value == "":
        return "none"
    if isinstance(value, str | int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return type(value).__name__


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
