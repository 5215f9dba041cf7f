"""The frame of experiments: what is stored is not run again, what fails is listed, and changed code is another key."""

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from counterpoint.core.errors import CounterpointError
from counterpoint.core.tables import read_csv
from reproduction import source_hash
from reproduction.classic import Classic
from reproduction.executors import InProcess, Joblib
from reproduction.experiment import Cell, Context, Experiment, Rows, choose, exclusive, recipe_key, run
from reproduction.source_hash import FRAME

SHAPES = False


@dataclass(frozen=True)
class Square:
    """A recipe: one number, and a file that counts how often it was squared."""

    number: int
    note: str


def square(recipe: Square, context: Context) -> Rows:
    with Path(recipe.note).open("a") as file:
        file.write(f"{recipe.number}\n")
    context.report("square", 1, 1)
    if recipe.number < 0:
        raise CounterpointError(f"{recipe.number} is negative; give another")
    context.shared.mkdir(parents=True, exist_ok=True)
    return [{"number": recipe.number, "square": recipe.number**2, "half": recipe.number / 2}]


@dataclass(frozen=True)
class Squares(Experiment):
    """Squares of some numbers, each under two labels."""

    numbers: tuple[int, ...]
    note: str
    name: str = "squares"

    columns = ("method", "number", "square", "commit")

    def cells(self) -> list[Cell]:
        return [
            Cell(square, Square(number, self.note), f"square {number}", {"method": label}, cost=number)
            for label in ("first", "second")
            for number in self.numbers
        ]

    def table(self, rows: Rows) -> Rows:
        return [{**row, "square": float(row["square"])} for row in rows]

    def page(self, rows: Rows, out: Path) -> None:
        (out / f"{self.name}.md").write_text(str(len(rows)))


@pytest.fixture
def note(tmp_path: Path) -> Path:
    return tmp_path / "note"


def test_a_run_writes_its_files_and_runs_nothing_twice(note: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "1234567")
    reports: list[tuple[str, int, int]] = []
    experiment = Squares((2, 5, 3), str(note))
    rows = experiment.run(tmp_path, report=lambda *line: reports.append(line))
    assert note.read_text() == "5\n3\n2\n", "one cell for two labels, the longest first"
    assert [(row["method"], row["number"], row["half"]) for row in rows] == [
        (method, number, number / 2) for method in ("first", "second") for number in (2, 5, 3)
    ]
    assert (tmp_path / "squares.csv").read_text().splitlines()[:2] == [
        "method,number,square,commit",
        "first,2,4.0,1234567",
    ]
    assert (tmp_path / "squares.md").read_text() == "6"
    assert [line for line in reports if line[0] == "cells"] == [("cells", done, 3) for done in range(4)]
    settings = json.loads((tmp_path / "squares.settings.json").read_text())
    assert (settings["numbers"], settings["ran_on"][0]["cells"]) == ([2, 5, 3], 6)
    assert settings["seconds"].keys() == {"square 2", "square 5", "square 3"}
    assert not (tmp_path / "squares" / "shared").exists(), "what cells shared is deleted once all are done"
    assert experiment.run(tmp_path) == rows
    assert note.read_text() == "5\n3\n2\n"


@pytest.mark.parametrize("damage", ["{", "{}", "[]", '{"rows": []}'])
def test_a_damaged_cell_runs_again(damage: str, note: Path, tmp_path: Path):
    experiment = Squares((2, 5), str(note))
    rows = experiment.run(tmp_path)
    (tmp_path / "squares" / "cells" / f"{experiment.cells()[0].key}.json").write_text(damage)
    assert experiment.run(tmp_path) == rows
    assert note.read_text() == "5\n2\n2\n"


def test_failures_are_listed_and_the_others_go_on(note: Path, tmp_path: Path):
    experiment = Squares((2, -5), str(note))
    with pytest.raises(CounterpointError, match=r"1 of 4 cells of squares failed \(square -5: Count"):
        experiment.run(tmp_path)
    (failure,) = read_csv(tmp_path / "squares.failures.csv")
    assert (failure["name"], failure["attempts"]) == ("square -5", 1)
    assert len(read_csv(tmp_path / "squares.csv")) == 2
    Squares((2,), str(note)).run(tmp_path)
    assert not (tmp_path / "squares.failures.csv").exists()
    with pytest.raises(CounterpointError):
        Squares((-1,), str(note), "nothing").run(tmp_path)
    assert not (tmp_path / "nothing.md").exists(), "no page without rows"


def test_experiments_share_the_executor_and_end_one_by_one(note: Path, tmp_path: Path):
    experiments = [Squares((2, 3), str(note), "a"), Squares((-1,), str(note), "b"), Squares((4,), str(note), "c")]
    experiments[2].run(tmp_path)
    finished = list(run(experiments, tmp_path, Joblib(2)))
    assert finished[0].experiment.name == "c", "what is done needs no worker"
    assert {each.experiment.name: (len(each.rows), len(each.failures)) for each in finished} == {
        "a": (4, 0), "b": (0, 1), "c": (2, 0)
    }  # fmt: skip
    rows_of_a = next(each.rows for each in finished if each.experiment.name == "a")
    assert experiments[0].run(tmp_path / "alone", InProcess()) == rows_of_a


def test_checkpoints_of_something_else_are_deleted(tmp_path: Path):
    experiment = Squares((1,), str(tmp_path / "note"))
    (cell,) = experiment.cells()[:1]
    begun = tmp_path / "squares" / "checkpoints" / f"{cell.key}-cpu"
    begun.mkdir(parents=True)
    (begun / "left").touch()
    experiment.run(tmp_path)
    assert not begun.exists()


def test_names_are_chosen_in_their_own_order():
    options = {"a": 1, "b": 2, "c": 3}
    assert list(choose(options, ("c", "a"))) == ["a", "c"]
    assert choose(options, ()) == options
    with pytest.raises(CounterpointError, match="there is no model 'd'; choose from a, b, c"):
        choose(options, ("d",), "model")


def _count(recipe: Any, context: Context) -> Rows:
    """Add one to a number in a file; without a lock, another process would overwrite it."""
    path = context.shared / "total"
    with exclusive(path):
        before = int(path.read_text()) if path.exists() else 0
        for _ in range(20_000):
            pass
        path.write_text(str(before + 1))
    return [{"total": before}]


@dataclass(frozen=True)
class Counted(Experiment):
    name: str = "counted"
    columns = ("total",)

    def cells(self) -> list[Cell]:
        return [Cell(_count, [number], "count") for number in range(8)]

    def page(self, rows: Rows, out: Path) -> None:
        pass


def test_a_shared_file_is_made_by_one_process_at_a_time(tmp_path: Path):
    rows = Counted().run(tmp_path, Joblib(2))
    assert sorted(row["total"] for row in rows) == list(range(8))


STUDY = {
    "cells.py": '''
"""Text."""
import os
from study import numbers as n
from study.draw import figure
from study.recipes import Small, Large

FACTOR = 2

def run(recipe, context):
    return helper(recipe)

def helper(recipe):
    from study.inner import late
    return FACTOR * n.one() * late()

def page(rows):
    figure(rows, OTHER)

OTHER = 3
''',
    "numbers.py": "from study.deep import deep\n\ndef one():\n    return deep  # a comment\n",
    "deep.py": "deep = 1\n",
    "inner.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from study.typed import T

def late():
    return 1
""",
    "draw.py": "def figure(rows, other):\n    return rows\n",
    "typed.py": "T = 1\n",
    "recipes.py": """
from dataclasses import dataclass
from study.base import Base

@dataclass(frozen=True)
class Small(Base):
    inner: object = None

@dataclass(frozen=True)
class Large(Base):
    size: int = 1
""",
    "base.py": "class Base:\n    pass\n",
    "__init__.py": "from study.draw import figure\n",
}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of a few modules in the place of ours."""
    folder = tmp_path / "study"
    folder.mkdir()
    for name, text in STUDY.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(source_hash, "PACKAGES", ("study",))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "study"]:
        del sys.modules[name]
    _forget()


def _forget() -> None:
    for cached in (source_hash._hash, source_hash._whole, source_hash._file):
        cached.cache_clear()


def test_a_key_knows_the_code_that_a_cell_runs_and_no_other(study: Path):
    cells, recipes = (importlib.import_module(f"study.{name}") for name in ("cells", "recipes"))
    recipe = [recipes.Small({"inside": (1, 2)})]

    def key_after(name: str, old: str, new: str) -> str:
        text = (study / name).read_text()
        assert old in text
        (study / name).write_text(text.replace(old, new))
        _forget()
        key = recipe_key(cells.run, recipe)
        (study / name).write_text(text)
        return key

    before = recipe_key(cells.run, recipe)
    counts = [
        ("cells.py", "FACTOR = 2", "FACTOR = 3"),
        ("cells.py", "return helper(recipe)", "return 2 * helper(recipe)"),
        ("numbers.py", "return deep", "return 2 * deep"),
        ("deep.py", "deep = 1", "deep = 2"),
        ("inner.py", "return 1", "return 2"),
        ("recipes.py", "inner: object = None", "inner: object = 0"),
        ("base.py", "pass", "x = 1"),
    ]
    changed = [key_after(*change) for change in counts]
    assert before not in changed
    assert len(set(changed)) == len(changed)
    for change in (
        ("cells.py", '"""Text."""', '"""Another text."""'),
        ("cells.py", "OTHER = 3", "OTHER = 4"),
        ("cells.py", "import os", "import os  # a comment"),
        ("numbers.py", "  # a comment", ""),
        ("draw.py", "return rows", "return other"),
        ("typed.py", "T = 1", "T = 2"),
        ("recipes.py", "size: int = 1", "size: int = 2"),
        ("__init__.py", "from study.draw import figure", ""),
    ):
        assert key_after(*change) == before, change
    assert recipe_key(cells.run, [recipes.Large()]) != before


def test_a_cells_code_holds_its_metrics_and_learners_but_neither_pages_nor_the_frame():
    cell = Classic().cells()[0]
    starts = {source_hash._definition(cell.function)}
    starts |= {source_hash._definition(kind) for kind in source_hash._classes(cell.recipe)}
    modules = {module for module, _ in starts}
    assert {"reproduction.classic", "counterpoint.learners.search", "reproduction.tasks.classic"} <= modules
    statements = source_hash._reachable(source_hash._tree("reproduction.classic"), {"search_and_evaluate"})
    imported = set(source_hash._imported(statements))
    assert "reproduction.tasks.classic_simulation" in imported
    assert not {name for name in imported if ".page" in name}
    assert "reproduction.experiment" in FRAME
