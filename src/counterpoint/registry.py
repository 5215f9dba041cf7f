"""`load`: a fitted thing back from its folder; a file may name what the package exports, and what the caller names."""

from importlib import import_module
from pathlib import Path
from typing import Any

from counterpoint.core import artifacts
from counterpoint.core.errors import CounterpointError
from counterpoint.core.settings import checked


@checked
def load(folder: Path | str, *classes: type) -> Any:
    """The fitted model, task or policy that was saved in `folder`; a class of your own is named behind it.

    Example:
        >>> model = counterpoint.load("runs/first/scm")  # doctest: +SKIP
        >>> policy = counterpoint.load("runs/first/policy", MyTask)  # doctest: +SKIP
    """
    return artifacts.load(folder, known(*classes))


def known(*classes: type) -> dict[str, type]:
    """Every class that the package exports, by name, and those given."""
    package = import_module("counterpoint")  # When called, not when imported: the package imports this file.
    exported = (getattr(package, name) for name in package.__all__)
    return {cls.__name__: cls for cls in (*exported, *classes) if isinstance(cls, type)}


def load_kind(folder: Path | str, kind: type | tuple[type, ...], what: str, *classes: type) -> Any:
    """Like `load`, and the thing must be of a kind."""
    thing = load(folder, *classes)
    if not isinstance(thing, kind):
        raise CounterpointError(f"'{folder}' holds a {type(thing).__name__}, not {what}; name another folder")
    return thing
