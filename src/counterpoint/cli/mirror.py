"""Recipes as the command line sees them: dataclasses read from source code, without importing the module or torch.

A recipe's module imports torch, which takes longer than all else that a mistyped option or `--help` needs. A mirror is
a dataclass with the same fields, types, defaults and help; `build` makes the recipe of it once the options are right.
`tests/test_startup.py` compares every mirror with its recipe.
"""

import ast
import builtins
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, make_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from counterpoint.core.lazy import exports

SOURCES = Path(__file__).parents[2]
LIGHT = ("abc", "collections", "counterpoint.core.settings", "dataclasses", "math", "pathlib", "typing")
"""Modules that are imported as they are; whatever else a source imports from outside the package is left out."""


class _Names(Mapping[str, Any]):
    """The names of a module, each evaluated when an expression asks for it."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __getitem__(self, name: str) -> Any:
        return value(self.module, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_statements(self.module))

    def __len__(self) -> int:
        return len(_statements(self.module))


@cache
def value(module: str, name: str) -> Any:
    """Return a mirror of what `name` is in a module of the package: a dataclass, a type alias or a constant."""
    statement = _statements(module).get(name)
    if statement is None:
        return getattr(builtins, name)
    if isinstance(statement, ast.ClassDef):
        return _mirror(module, statement)
    if isinstance(statement, ast.ImportFrom):
        return _imported(statement.module or "", next(a.name for a in statement.names if name in (a.name, a.asname)))
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        return _evaluated(module, statement.value)
    return Any


def commands(subpackage: str) -> dict[str, tuple[str, str, str]]:
    """Return module, class and description of every class of a subpackage that the command line offers, by its name.

    Such a class is exported in the subpackage's `__init__.pyi`, and says in its body

        command: ClassVar = ("its name on the command line", "a few words about it")
    """
    offered = {}
    for name, module in exports(SOURCES / "counterpoint" / subpackage / "__init__.pyi").items():
        if "    command: ClassVar = (" not in _path(module).read_text(encoding="utf-8"):
            continue
        for statement in getattr(_statements(module).get(name), "body", []):
            if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "command":
                word, description = ast.literal_eval(statement.value or statement.target)
                offered[word] = module, name, description
    return offered


def choice(recipes: Mapping[str, tuple[str, str, str]], otherwise: tuple[str, str] | None = None) -> Any:
    """Return the union of recipes that a command chooses from.

    Args:
        recipes: module, class and description of every recipe, by its name on the command line.
        otherwise: name and description of None, where the command may choose itself.
    """
    kinds = [
        Annotated[value(module, name), tyro.conf.subcommand(word, description=description)]
        for word, (module, name, description) in recipes.items()
    ]
    if otherwise is not None:
        word, description = otherwise
        kinds.append(Annotated[None, tyro.conf.subcommand(word, description=description)])
    return Union[tuple(kinds)]  # noqa: UP007


def build(mirrored: Any) -> Any:
    """Return the value with a recipe in place of every mirror in it."""
    if isinstance(mirrored, tuple):
        return tuple(build(item) for item in mirrored)
    if not is_dataclass(mirrored) or isinstance(mirrored, type):
        return mirrored
    built = {field.name: build(getattr(mirrored, field.name)) for field in fields(mirrored) if field.init}
    source = getattr(type(mirrored), "source", None)
    if source is not None:
        return getattr(import_module(source), type(mirrored).__name__)(**built)
    return replace(mirrored, **{name: item for name, item in built.items() if item is not getattr(mirrored, name)})


class _Generic:
    """A class whose type arguments are ignored."""

    def __class_getitem__(cls, arguments: Any) -> Any:
        return cls


@cache
def _statements(module: str) -> dict[str, ast.stmt]:
    """The top-level statement that gives a name its meaning, by name."""
    statements: dict[str, ast.stmt] = {}
    for statement in ast.parse(_path(module).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ClassDef):
            statements[statement.name] = statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            statements |= {alias.asname or alias.name: statement for alias in statement.names}
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            statements |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    return statements


def _path(module: str) -> Path:
    path = SOURCES / f"{module.replace('.', '/')}.py"
    return path if path.exists() else path.with_suffix("") / "__init__.pyi"


def _imported(module: str, name: str) -> Any:
    if module.startswith(LIGHT):
        return getattr(import_module(module), name)
    return value(module, name) if module.startswith("counterpoint.") else Any


def _evaluated(module: str, expression: ast.expr) -> Any:
    return eval(compile(ast.Expression(expression), module, "eval"), {}, _Names(module))


def _mirror(module: str, statement: ast.ClassDef) -> Any:
    """A dataclass with the fields of the class; a class that has none is a plain one."""
    names = [base.value if isinstance(base, ast.Subscript) else base for base in statement.bases]
    bases = [_evaluated(module, base) for base in names if isinstance(base, ast.Name)]
    inherited = tuple(base for base in bases if isinstance(base, type) and is_dataclass(base))
    own = [
        _field(module, node, _docstring(after))
        for node, after in zip(statement.body, [*statement.body[1:], None], strict=True)
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
    ]
    recipe = inherited or any("dataclass" in ast.unparse(decorator) for decorator in statement.decorator_list)
    if not recipe:
        return type(statement.name, (_Generic,), {})
    mirror = make_dataclass(statement.name, own, bases=inherited or (_Generic,), frozen=True)
    mirror.__doc__ = ast.get_docstring(statement)
    mirror.source = module
    return mirror


def _field(module: str, node: ast.AnnAssign, help_text: str | None) -> tuple[Any, ...]:
    assert isinstance(node.target, ast.Name)
    kind = _evaluated(module, node.annotation)
    kind = Annotated[kind, tyro.conf.arg(help=help_text)] if help_text else kind
    return (node.target.id, kind) if node.value is None else (node.target.id, kind, _evaluated(module, node.value))


def _docstring(statement: ast.stmt | None) -> str | None:
    """The text of a string that stands alone, as below a field."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return inspect.cleandoc(str(statement.value.value))
    return None
