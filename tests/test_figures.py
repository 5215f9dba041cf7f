"""Figures show their data, tables keep every digit, and a failed write leaves the old file as it was."""

import json
import os
import shutil
import socket
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from counterpoint.core import provenance, tables
from counterpoint.core.errors import CounterpointError
from counterpoint.page import returns as figures
from counterpoint.page import style
from reproduction.pages import returns as reproduction_figures
from reproduction.pages.counterfactuals import counterfactual_errors
from reproduction.pages.paper import paper_points, paper_returns_by_gravity, paper_returns_by_size

matplotlib = pytest.importorskip("matplotlib")


def bars(shift: float = 0.0) -> list[dict]:
    return [
        {"method": method, "trials": trials, "low": level - 20, "estimate": level, "high": level + 20}
        for method, start in [("D3QN", 80.0), ("CTRL_g", 120.0), ("mine", 150.0)]
        for trials in (50, 100, 150)
        for level in [start + trials + shift]
    ]


def differences(shift: float = 0.0) -> list[dict]:
    return [
        {
            "comparison": "CTRL_g − D3QN",
            "group": "50 trials",
            "low": 5 + shift,
            "estimate": 20 + shift,
            "high": 30 + shift,
        },
        {"comparison": "CTRL_g − BCQ", "group": "50 trials", "low": -9, "estimate": 2, "high": 12},
        {"comparison": "CTRL_g − D3QN", "group": "250 trials", "low": -40, "estimate": -30, "high": -12},
    ]


def seeds(shift: float = 0.0) -> list[dict]:
    return [
        {"method": method, "seed": seed, "return": 50.0 * seed + level + shift}
        for method, level in [("D3QN", 10.0), ("CTRL_g", 90.0)]
        for seed in range(5)
    ]


def errors(shift: float = 0.0) -> list[dict]:
    return [
        {"scm": scm, "method": method, "error": error + shift}
        for scm, method, error in [("tumour", "flow", 0.1), ("tumour", "BiCoGAN", 0.4), ("HIV", "flow", 2.0)]
    ]


DRAWINGS = {
    "returns_by_size": (
        lambda rows, path: reproduction_figures.returns_by_size(rows, paper_returns_by_size(), path, ceiling=500.0),
        bars,
    ),
    "paired_differences": (reproduction_figures.paired_differences, differences),
    "demo_figure": (lambda rows, path: figures.demo_figure(rows, path, random_return=21.0, ceiling=500.0), seeds),
    "counterfactual_errors": (counterfactual_errors, errors),
}


def pixels(path: Path) -> np.ndarray:
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    return matplotlib.image.imread(path)


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_picture_depends_on_the_data_and_on_nothing_else(name: str, tmp_path: Path) -> None:
    import matplotlib.image

    draw, rows = DRAWINGS[name]
    before = dict(matplotlib.rcParams)
    draw(rows(), tmp_path / "first.png")
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9}):
        draw(rows(), tmp_path / "again.png")
    draw(rows(3.0), tmp_path / "shifted.png")
    first = pixels(tmp_path / "first.png")
    assert first.shape[1] == 1500
    assert first.std() > 0.05
    np.testing.assert_array_equal(first, pixels(tmp_path / "again.png"))
    shifted = pixels(tmp_path / "shifted.png")
    assert first.shape != shifted.shape or np.abs(first - shifted).max() > 0.3
    assert sorted(os.listdir(tmp_path)) == ["again.png", "first.png", "shifted.png"]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch):
    """The matplotlib figures saved during a test, to ask what is on them."""
    from matplotlib.figure import Figure

    kept, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (kept.append(self), save(self, *args, **kw)))
    return kept


def test_returns_of_one_size_are_dots_with_their_intervals(drawn, tmp_path: Path) -> None:
    """A line between one point is nothing to see."""
    some = [row for row in bars() if row["trials"] == 50]
    reproduction_figures.returns_by_size(some, paper_returns_by_size(), tmp_path / "figure.png", ceiling=500.0)
    panel = next(panel for panel in drawn[0].axes if panel.get_title(loc="left") == "CTRL_g")
    ours = {line.get_label(): line for line in panel.lines}["ours: estimate and 95% interval over seeds"]
    assert (ours.get_marker(), ours.get_xydata().tolist()) == ("o", [[50, 170]])
    spans = [each.get_segments() for each in panel.collections if hasattr(each, "get_segments")]
    assert any(len(own) == 1 and own[0].tolist() == [[50, 150], [50, 190]] for own in spans)


def test_returns_by_size_shows_ours_and_the_papers_numbers(drawn, tmp_path: Path) -> None:
    reproduction_figures.returns_by_size(bars(), paper_returns_by_size(), tmp_path / "figure.png", ceiling=500.0)
    panels = {panel.get_title(loc="left"): panel for panel in drawn[0].axes if panel.axison}
    assert list(panels) == ["D3QN", "CTRL_g", "mine"]
    ours = {line.get_label(): line for line in panels["CTRL_g"].lines}["ours: estimate and 95% interval over seeds"]
    np.testing.assert_allclose(ours.get_xydata(), [[50, 170], [100, 220], [150, 270]])
    paper = panels["CTRL_g"].containers[0].lines
    np.testing.assert_allclose(paper[0].get_ydata(), [116.9, 153.0, 220.2, 280.0, 310.4])
    bottom, top = paper[2][0].get_segments()[0][:, 1]
    assert (bottom, top) == pytest.approx((116.9 - 10.2, 116.9 + 10.2))
    assert not panels["mine"].containers
    for panel in panels.values():
        assert [500.0, 500.0] in [list(line.get_ydata()) for line in panel.lines if line.get_linestyle() == "--"]
    assert len(drawn[0].legends) == 1


def test_demo_marks_the_interquartile_mean(drawn, tmp_path: Path) -> None:
    rows = [{"method": "D3QN", "seed": k, "return": value} for k, value in enumerate([0, 100, 110, 120, 500])]
    figures.demo_figure(rows, tmp_path / "figure.png", random_return=21.0, ceiling=500.0)
    axes = drawn[0].axes[0]
    assert list(axes.containers[0].lines[0].get_xdata()) == pytest.approx([110.0])
    assert sorted(axes.collections[0].get_offsets()[:, 0]) == [0, 100, 110, 120, 500]
    assert sorted(line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--") == [21.0, 500.0]


def test_forest_fills_only_what_excludes_zero(drawn, tmp_path: Path) -> None:
    reproduction_figures.paired_differences(differences(), tmp_path / "figure.png")
    markers = [[line for line in axes.lines if line.get_marker() == "o"] for axes in drawn[0].axes]
    assert [[line.get_markerfacecolor() for line in own] for own in markers] == [
        [style.BLUE, "white"],
        [style.VERMILLION],
    ]
    assert [[(line.get_xdata()[0], line.get_ydata()[0]) for line in own] for own in markers] == [
        [(20, 0), (2, 1)],
        [(-30, 0)],
    ]
    assert [axes.get_title(loc="left") for axes in drawn[0].axes] == ["50 trials", "250 trials"]
    assert [label.get_text() for label in drawn[0].axes[0].get_yticklabels()] == ["CTRL_g − D3QN", "CTRL_g − BCQ"]


def test_a_forest_of_many_groups_is_no_taller_than_a_page_and_hides_empty_panels(drawn, tmp_path: Path) -> None:
    rows = [{**row, "group": f"{size} trials"} for size in range(6) for row in differences()[:2]]
    reproduction_figures.paired_differences(rows, tmp_path / "figure.png")
    assert [axes.get_visible() for axes in drawn[0].axes] == [True] * 6 + [False] * 2
    assert drawn[0].get_size_inches()[1] < 5


def test_error_map_prints_each_number_and_bolds_the_best(drawn, tmp_path: Path) -> None:
    rows = [*errors(), {"scm": "tumour", "method": "flow", "error": 0.3}]
    counterfactual_errors(rows, tmp_path / "figure.png")
    texts = {text.get_text(): text.get_fontweight() for text in drawn[0].axes[0].texts}
    assert texts == {"0.2": "bold", "0.4": "normal", "2": "bold", "–": "normal"}  # 0.2: the mean of 0.1 and 0.3


def test_error_map_of_many_scms_has_room_for_its_numbers(drawn, tmp_path: Path) -> None:
    rows = [{"scm": f"scm {i}", "method": "flow", "error": error} for i, error in enumerate([0.01234, 0, 1.26] * 4)]
    counterfactual_errors(rows, tmp_path / "figure.png")
    axes, renderer = drawn[0].axes[0], drawn[0].canvas.get_renderer()
    assert [text.get_text() for text in axes.texts[:3]] == [".012", "0", "1.3"]
    places = [text.get_window_extent(renderer) for text in axes.texts]
    assert all(left.x1 < right.x0 for left, right in pairwise(places))


def test_returns_without_a_ceiling_have_no_line_and_may_be_negative(drawn, tmp_path: Path) -> None:
    reproduction_figures.returns_by_size(bars(-900.0), [], tmp_path / "sizes.png")
    figures.demo_figure(seeds(-900.0), tmp_path / "seeds.png")
    for figure in drawn:
        for axes in figure.axes:
            assert not [line for line in axes.lines if line.get_linestyle() == "--"]
    assert drawn[0].axes[0].get_ylim()[0] < -770
    assert drawn[1].axes[0].get_xlim()[0] < -890


def test_missing_columns_and_bad_errors_are_named(tmp_path: Path) -> None:
    with pytest.raises(CounterpointError, match="ours row 0 has no column 'high'"):
        reproduction_figures.returns_by_size(
            [{"method": "a", "trials": 1, "low": 0, "estimate": 1}], [], tmp_path / "f.png"
        )
    with pytest.raises(CounterpointError, match="no rows"):
        figures.demo_figure([], tmp_path / "f.png")
    with pytest.raises(CounterpointError, match="row 0 has error -1"):
        counterfactual_errors([{"scm": "a", "method": "b", "error": -1.0}], tmp_path / "f.png")


def test_a_failed_figure_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), style.canvas(path, 2.0, "title"):
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["figure.png"]


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_failed_table_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    tables.write_csv([{"a": 1}], path)
    with pytest.raises(RuntimeError):
        tables.write_csv([{"a": 2}, {"a": Unwritable()}], path)
    with pytest.raises(ValueError):
        tables.write_json({"a": float("nan")}, path)
    assert path.read_text() == "a\n1\n"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_csv_gives_back_the_same_values_in_the_same_order(tmp_path: Path) -> None:
    rows = [
        {"method": "CTRL_g, mine", "return": 0.1 + 0.2, "seed": 3, "done": True},
        {"method": "D3QN", "return": np.float64(1 / 3), "seed": np.int64(-4), "late": 1e-30, "done": False},
        {"method": "007", "return": float("inf"), "seed": 10**20, "done": None},
    ]
    tables.write_csv(rows, tmp_path / "table.csv")
    back = tables.read_csv(tmp_path / "table.csv")
    assert list(back[0]) == ["method", "return", "seed", "done", "late"]
    for row, read in zip(rows, back, strict=True):
        for column in read:
            assert read[column] == row.get(column)
    tables.write_csv(rows, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "table.csv").read_bytes()


def test_markdown_formats_aligns_and_escapes() -> None:
    rows = [{"method": "a|b", "return": 1.25, "seed": 1}, {"method": "c", "return": float("nan"), "seed": 2}]
    assert tables.markdown_table(rows, ["method", "seed", "return"], {"return": ".1f"}).splitlines() == [
        "| method | seed | return |",
        "| :-- | --: | --: |",
        "| a\\|b | 1 | 1.2 |",
        "| c | 2 | – |",
    ]


def test_the_papers_numbers_are_all_there() -> None:
    assert len(paper_points()) == 140
    rows = {(row["method"], row["trials"]): row for row in paper_returns_by_size()}
    assert len(rows) == 40
    assert rows["CTRL_g", 50]["estimate"] == 116.9
    assert rows["CTRL_g", 50]["high"] - rows["CTRL_g", 50]["low"] == pytest.approx(2 * 10.2)
    planets = {(row["method"], row["gravity"]): row["estimate"] for row in paper_returns_by_gravity("non-random")}
    assert planets["CTRL_p", "jupiter"] == 129.3
    assert len(planets) == 30


def test_provenance_names_versions_but_no_place() -> None:
    record = provenance.provenance()
    assert record["torch"].startswith("2")
    assert record["cpu_count"] == os.cpu_count()
    assert record["device"]
    text = json.dumps(record)
    assert not any(place in text for place in (socket.gethostname(), os.getcwd(), str(Path.home())))


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_is_that_of_the_checkout_that_tracks_the_package(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("COUNTERPOINT_COMMIT", raising=False)
    module, table = tmp_path / "src" / "package" / "core" / "provenance.py", tmp_path / "table.csv"
    module.parent.mkdir(parents=True)
    for each in (module, table):
        each.write_text("one\n")
    monkeypatch.setattr(provenance, "__file__", str(module))
    assert provenance._commit() is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert provenance._commit() is None  # in a checkout, but not tracked by it
    git("add", ".")
    git("commit", "-q", "-m", "second")
    git("tag", "-a", "v1", "-m", "an annotated tag must not stand in for the commit")
    assert provenance._commit() == git("rev-parse", "HEAD")
    table.write_text("two\n")
    assert provenance._commit() == git("rev-parse", "HEAD"), "a run that writes its tables does not edit its code"
    module.write_text("two\n")
    assert provenance._commit() == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setattr(subprocess, "run", lambda *args, **kw: (_ for _ in ()).throw(FileNotFoundError("git")))
    assert provenance._commit() is None
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "told")
    assert provenance._commit() == "told", "a copy without history is told its commit"
