"""Lazy exports: a package lists its public names in `__init__.pyi`, and each is imported when it is first used.

Editors and type checkers read the same file, so that every name is written once (the idea of scientific Python's
SPEC 1). `import counterpoint` therefore imports neither torch nor scikit-learn.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose names stand in the stub beside `file`.

    Args:
        package: the package's `__name__`.
        file: the path of its `__init__.py`; `__init__.pyi` beside it holds lines `from module import Name as Name`.
    """
    modules = exports(Path(file).with_suffix(".pyi"))

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        if modules[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(modules), sorted(modules)


def exports(stub: Path) -> dict[str, str]:
    """Return the module of every name that a stub imports, by name."""
    statements = ast.parse(stub.read_text(encoding="utf-8")).body
    imports = [statement for statement in statements if isinstance(statement, ast.ImportFrom)]
    return {alias.name: statement.module or "" for statement in imports for alias in statement.names}
