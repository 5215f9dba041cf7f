"""The classes that a saved artifact may name, and `load`, which reads an artifact back."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, overload

from counterpoint.core import artifacts
from counterpoint.core.artifacts import Artifact
from counterpoint.core.lazy import exports
from counterpoint.core.settings import checked

Kind = TypeVar("Kind")
SUBPACKAGES = ("data", "learners", "models", "ope", "policies", "simulation", "tasks")
"""Subpackages whose exported classes a saved artifact may name."""


class Registry(Mapping[str, type]):
    """Loadable classes by name: exported classes, each imported when it is looked up, and a caller's own.

    Args:
        classes: classes defined outside the package, such as a task of the user's.
    """

    def __init__(self, classes: Sequence[type] = ()) -> None:
        root = Path(__file__).parent
        stubs = [exports(root / subpackage / "__init__.pyi") for subpackage in SUBPACKAGES]
        self.modules = {name: module for stub in stubs for name, module in stub.items() if name[0].isupper()}
        self.classes = {cls.__name__: cls for cls in classes}

    def __getitem__(self, name: str) -> type:
        if name in self.classes:
            return self.classes[name]
        return getattr(import_module(self.modules[name]), name)

    def __iter__(self) -> Iterator[str]:
        return iter({**self.modules, **self.classes})

    def __len__(self) -> int:
        return len(self.modules.keys() | self.classes.keys())


@overload
def load(folder: Path | str) -> Artifact: ...
@overload
def load(folder: Path | str, kind: type[Kind], classes: Sequence[type] = ()) -> Kind: ...
@checked
def load(folder: Path | str, kind: Any = Artifact, classes: Sequence[type] = ()) -> Any:
    """Load the fitted model, task or policy that was saved in `folder`.

    Args:
        folder: the folder that `save` wrote.
        kind: the class that the artifact must have, such as `Policy`; an artifact of another class is refused.
        classes: classes of your own that the artifact contains.

    Example:
        >>> model = counterpoint.load("runs/first/scm")  # doctest: +SKIP
        >>> policy = counterpoint.load("runs/first/policy", Policy, [MyTask])  # doctest: +SKIP
    """
    return artifacts.load(folder, kind, Registry(classes))
