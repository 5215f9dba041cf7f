"""A hash of the source code that a result depends on, so that changed code makes a stored result stale.

The import graph of `counterpoint` and `reproduction` is followed with `ast`, from a function and from the classes of
its recipe. Comments, docstrings and imports for type checkers do not count.
"""

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGES = ("counterpoint", "reproduction")
FRAME = ("reproduction.experiment", "reproduction.executors", "reproduction.source_hash")
"""Modules that schedule and store cells. No number depends on them."""
Definition = tuple[str, str]
"""A module and the name of a function or class in it."""


def source_hash(function: Callable[..., Any], recipe: Any) -> str:
    """Hash the code that `function(recipe)` runs: all modules that are reached from it and from the recipe's classes.

    Of the modules that define `function` and those classes, only the definitions that these use count. So the module
    of an experiment may import its figures, and a changed figure leaves its results valid.

    Args:
        function: A function at the top level of a module.
        recipe: Its argument: dataclasses, containers and plain values.
    """
    starts = {_definition(function)} | {_definition(kind) for kind in _classes(recipe)}
    return _hash(frozenset(start for start in starts if start[0].split(".")[0] in PACKAGES))


@cache
def _hash(starts: frozenset[Definition]) -> str:
    partial = {module: _reachable(_tree(module), {n for m, n in starts if m == module}) for module, _ in starts}
    whole: set[str] = set()
    queue = [name for statements in partial.values() for name in _imported(statements)]
    while queue:
        module = queue.pop()
        if module not in whole and module not in FRAME:
            whole.add(module)
            queue += _whole(module)[1]
    total = hashlib.sha256()
    for module in sorted({*whole, *partial}):
        total.update(module.encode())
        total.update(_whole(module)[0] if module in whole else _dumped(partial[module]))
    return total.hexdigest()[:16]


@cache
def _whole(module: str) -> tuple[bytes, list[str]]:
    """A module's statements as they are hashed, and the modules of ours that they import. Trees are not kept."""
    statements = _tree(module)
    return _dumped(statements), list(_imported(statements))


def _dumped(statements: Iterable[ast.stmt]) -> bytes:
    return "".join(map(ast.dump, statements)).encode()


def _definition(thing: Any) -> Definition:
    return thing.__module__, thing.__qualname__.split(".")[0]


def _classes(value: Any) -> set[type]:
    """The classes of a value and of everything in it."""
    classes = {type(value)}
    inner: Iterable[Any] = ()
    if is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inner = value
    for item in inner:
        classes |= _classes(item)
    return classes


def _tree(module: str) -> tuple[ast.stmt, ...]:
    """The top-level statements of a module without docstrings and imports for type checkers."""
    path = _file(module)
    assert path is not None
    tree = _Bare().visit(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(tree.body)


@cache
def _file(module: str) -> Path | None:
    """The file of a module of ours; None for other packages, and where there is no such module."""
    top, *rest = module.split(".")
    if top not in PACKAGES:
        return None
    base = Path(import_module(top).__path__[0]).joinpath(*rest)
    candidates = [base / "__init__.py", *([base.with_name(f"{base.name}.py")] if rest else [])]
    return next((path for path in candidates if path.is_file()), None)


class _Bare(ast.NodeTransformer):
    """Removes strings that stand alone and blocks for type checkers."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return [self.visit(statement) for statement in node.orelse]
        return self.generic_visit(node)


def _imported(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """The modules of ours that these statements import, inside functions too."""
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if _file(name) else node.module for name in inside]
        else:
            continue
        yield from (name for name in names if _file(name))


def _reachable(tree: Iterable[ast.stmt], names: set[str]) -> tuple[ast.stmt, ...]:
    """The statements that define `names`, those that define the names used there, and so on.

    Statements that define nothing, such as a call at the top level, are always among them.
    """
    statements = list(tree)
    kept = [not _defined(statement) for statement in statements]
    queue = list(names)
    queue += [name for statement, keep in zip(statements, kept, strict=True) if keep for name in _used(statement)]
    followed: set[str] = set()
    while queue:
        name = queue.pop()
        if name in followed:
            continue
        followed.add(name)
        for place, statement in enumerate(statements):
            if name in _defined(statement) and not kept[place]:
                kept[place] = True
                queue += _used(statement)
    return tuple(_only(statement, followed) for statement, keep in zip(statements, kept, strict=True) if keep)


def _defined(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()


def _used(statement: ast.stmt) -> list[str]:
    return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]


def _only(statement: ast.stmt, names: set[str]) -> ast.stmt:
    """An import without the names that are not used."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return statement
    used = [alias for alias in statement.names if (alias.asname or alias.name.split(".")[0]) in names]
    if isinstance(statement, ast.Import):
        return ast.Import(names=used)
    return ast.ImportFrom(module=statement.module, names=used, level=statement.level)
