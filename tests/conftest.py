"""One thread a process, and the shapes in the annotations checked at every call of the package."""

import gc
import sys
from collections.abc import Iterator

import pytest
import torch
from jaxtyping import config, install_import_hook

import helpers.shapes  # noqa: F401  The hook below looks it up by name.

assert not any(name.startswith("counterpoint") for name in sys.modules), "imported before its shapes could be checked"
install_import_hook("counterpoint", "helpers.shapes.check")

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def imported_modules_are_no_garbage() -> None:
    """Keep what is alive between modules out of garbage collections, which would search millions of objects each time.

    Every cell of an experiment collects garbage when it has run.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def shapes_checked_where_it_is_cheap(request: pytest.FixtureRequest) -> Iterator[None]:
    """A module that runs long loops says `SHAPES = False`: others check the same functions, and it takes a third."""
    config.update("jaxtyping_disable", not getattr(request.module, "SHAPES", True))
    yield
    config.update("jaxtyping_disable", False)
