"""The numbers and claims on the pages are those of the result files."""

import json
from pathlib import Path

import pytest

import keep_benchmark
import number_specs
from claims import Page, SpecificationError, pages
from number_specs import answers

SD = "sd.csv; mean return_selected; method=A"
LEAST = 1100
MOST_UNBOUND = {
    "README.md": 2, "docs/explanation/effects.md": 12, "docs/explanation/near-practice.md": 14,
    "docs/explanation/off-policy-evaluation.md": 22, "docs/explanation/search.md": 5,
    "docs/explanation/subjects.md": 6, "docs/how-to/mimic.md": 41, "docs/how-to/own-table.md": 13,
    "docs/how-to/report.md": 3, "docs/tutorial/first-ten-minutes.md": 1, "reproduction/docs/evaluation.md": 6,
    "reproduction/docs/paper-to-code.md": 12, "reproduction/docs/results.md": 4, "reproduction/docs/sepsis.md": 12,
}  # fmt: skip
"""Numbers of a page that no file holds and no script beside them prints; may fall, must not rise."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two methods, two sizes, two seeds; a third method with a seed that only it has."""
    rows = ["method,trials,seed,return_selected,return_last"]
    rows += [f"{m},{t},{s},{10 * t + s + 4 * (m == 'A')},{t}" for m in "AB" for t in (5, 10) for s in (0, 2)]
    rows += ["C,5,0,60,5", "C,5,2,62,5", "C,5,7,999,5"]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "sd.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(number_specs, "FOLDERS", (tmp_path / "results",))
    return tmp_path


def page(text: str, **entries: dict) -> Page:
    """A page with one entry of each kind that is named."""
    return Page("a.md", text, {kind: [{"page": "a.md", **entry}] for kind, entry in entries.items()})


def compared(text: str, holds: str) -> list[str]:
    return page(text, comparison={"text": "It is above", "holds": holds}).disagreements()


@pytest.mark.parametrize("checked", pages(), ids=lambda checked: checked.name)
def test_every_page_agrees_with_its_files(checked: Page) -> None:
    lines = checked.disagreements()
    assert not lines, "\n".join([*lines, "run: python tools/claims.py --write"])


def test_most_numbers_come_from_files() -> None:
    assert sum(correction.numbers for checked in pages() for correction in checked.corrections) >= LEAST


def test_entries_of_unknown_pages_are_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("One.")
    (tmp_path / "claims.toml").write_text('[[number]]\npage = "docs/no.md"\ntext = "has {}"\nvalue = "a.csv; mean b"\n')
    with pytest.raises(SpecificationError, match=r"not there: docs/no\.md"):
        pages(tmp_path / "claims.toml", tmp_path)


@pytest.mark.parametrize(
    ("claim", "true"),
    [
        (f"{SD}; trials=5 / 10 > sd.csv; mean return_selected; method=B; trials=5 / 10", True),
        (f"{SD}; trials=5 / 10 > 56", False),
        (f"{SD}; trials=5 / 10 < 106", True),
        ("sd.csv; difference return_selected by seed; method=A − B; trials=5 > 0", True),
        ("sd.csv; difference return_selected by seed; method=B − A; trials=5 > 0", False),
    ],
)
def test_a_comparison_holds_for_all_pairs_or_is_reported(files: Path, claim: str, true: bool) -> None:
    assert (not compared("It is above it.", claim)) == true


def test_a_comparison_of_other_counts_is_an_error(files: Path) -> None:
    difference = "sd.csv; difference return_selected by seed; method=A − B; trials=5"
    with pytest.raises(SpecificationError, match="2 numbers on one side and 3 on the other"):
        compared("It is above.", f"{SD}; trials=5 / 10 > {difference}")


def test_a_comparison_without_its_sentence_is_an_error(files: Path) -> None:
    with pytest.raises(SpecificationError, match="'It is above' occurs 0 times"):
        compared("It is below.", f"{SD}; trials=5 < 106")


def test_a_quotation_stands_on_the_page_it_names(files: Path) -> None:
    (files / "results" / "sd.md").write_text("A is above B at 5 and 10 trials.\n")
    quotation = {"text": "Two.", "source": "sd.md", "sentence": "A is above B at 5 and 10 trials"}
    assert not page("One.\n\nTwo.", quotation=quotation).disagreements()
    wrong = page("One.\n\nTwo.", quotation={**quotation, "sentence": "B is above A"})
    assert wrong.disagreements() == ["line 3 rests on 'B is above A', which sd.md does not say"]
    with pytest.raises(SpecificationError, match=r"there is no hd\.md"):
        page("Two.", quotation={**quotation, "source": "hd.md"}).disagreements()


@pytest.mark.parametrize("checked", pages(), ids=lambda checked: checked.name)
def test_no_more_numbers_without_a_file(checked: Page) -> None:
    left = checked.unbound()
    assert len(left) <= MOST_UNBOUND.get(checked.name, 0), "\n".join(f"line {line}: {text}" for line, text in left)


def test_a_wrong_number_is_corrected(files: Path) -> None:
    text = "From 5 trials on it has 55\n  and 9,999 of 500."
    wrong = page(text, number={"text": "it has {} and {} of", "value": f"{SD}; trials=5 / 10"})
    assert [(each.text, each.expected) for each in wrong.corrections] == [("55", "55"), ("9,999", "105")]
    assert wrong.disagreements() == ["line 2 says 9,999, the file 105"]
    assert wrong.corrected() == text.replace("9,999", "105")


def test_the_text_of_a_number_occurs_once_and_has_as_many_places(files: Path) -> None:
    entry = {"text": "has {}", "value": f"{SD}; trials=5"}
    with pytest.raises(SpecificationError, match=r"'has \{\}' occurs 2 times"):
        _ = page("It has 55. It has 55.", number=entry).corrections
    with pytest.raises(SpecificationError, match="2 numbers in the file, 1 in"):
        _ = page("It has 55.", number={**entry, "value": f"{SD}; trials=5 / 10"}).corrections
    other = page("It has 7 and 9.", number={"text": "has {_} and {}", "value": f"{SD}; trials=5"})
    assert other.corrected() == "It has 7 and 55."


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("sd.csv; mean return_selected - return_last; method=A; trials=5; +.1f", ["+50.0"]),
        ("sd.csv; min mean return_selected by trials; method=B", ["51"]),
        ("sd.csv; count return_selected >= 54; trials=5", ["5"]),
        ("sd.csv; count; method!=A", ["7"]),
        ("sd.csv; mean seed == 2; method=B; .0%", ["50%"]),
        ("sd.csv; difference return_selected by seed; method=B − A; trials=5", ["−4", "−4", "−4"]),
        ("sd.csv; difference return_selected by seed; method=C − A; trials=5", ["6", "6", "6"]),
        ("sd.csv; max return_selected; trials>=10; ,.2f", ["106.00"]),
    ],
)
def test_specifications(files: Path, spec: str, wanted: list[str]) -> None:
    assert answers(spec) == wanted


def test_figures_of_a_benchmark(files: Path) -> None:
    (files / "results" / "benchmarks").mkdir()
    parts = {"a": {"s": 3.0}, "b": {"s": 9.0}}
    told = {
        "fit": {"seconds": 3.25},
        "parts": parts,
        "rows": [{"searched in": "a b", "x": 1.5}, {"searched in": "c", "x": 2.5}],
    }
    (files / "results" / "benchmarks" / "speed.json").write_text(json.dumps(told))
    assert answers("benchmarks/speed.json; mean fit.seconds; .1f") == ["3.2"]
    assert answers("benchmarks/speed.json#rows; mean x; searched in=a b / c; .1f") == ["1.5", "2.5"]
    assert answers("benchmarks/speed.json#parts; max s") == ["9"]
    assert answers("benchmarks/speed.json#parts; mean s; name=a") == ["3"]
    with pytest.raises(SpecificationError, match="no list 'fit'"):
        answers("benchmarks/speed.json#fit; mean seconds")


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark that prints its options, one that fails, and one without figures."""
    (tmp_path / "benchmarks").mkdir()
    speed = "import json, sys\nprint('a table')\nprint(json.dumps({'told': sys.argv[1:]}))"
    for name, text in {"speed": speed, "fails": "print('{}')\nraise SystemExit(3)", "mute": "print('[1]')"}.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
    monkeypatch.setattr(keep_benchmark, "ROOT", tmp_path)
    monkeypatch.setattr(keep_benchmark, "KEPT", tmp_path / "results" / "benchmarks")
    return tmp_path


def test_figures_are_kept_with_their_command(scripts: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(
        "sys.argv", ["keep_benchmark.py", "--as", "small", "speed", "--rows", "10 20", "--as", "its own"]
    )
    keep_benchmark.main()
    told = ["--rows", "10 20", "--as", "its own"]
    kept = json.loads((scripts / "results" / "benchmarks" / "speed-small.json").read_text())
    assert kept == {"command": "python benchmarks/speed.py --rows '10 20' --as 'its own'", "told": told}
    assert "a table\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "said"), [("fails", "exit code 3"), ("mute", "no JSON object"), ("no", "choose from fails, mute, speed")]
)
def test_what_gives_no_figures_is_not_kept(
    scripts: Path, monkeypatch: pytest.MonkeyPatch, capsys, script: str, said: str
) -> None:
    monkeypatch.setattr("sys.argv", ["keep_benchmark.py", script])
    with pytest.raises(SystemExit) as stop:
        keep_benchmark.main()
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (scripts / "results").exists()


def test_a_table_is_written_from_its_entry(files: Path) -> None:
    row = "| {t} | {mean return_selected; method=A; trials={t}} | {mean return_selected; method={other}; trials={t}} |"
    entry = {
        "head": "| t | A | C |",
        "file": "sd.csv",
        "row": row,
        "variables": {"t": ["5", "10"], "other": ["–", "C"]},
    }
    text = "| t | A | C |\n|---|---|---|\n| old |\n\nAfter.\n"
    assert (
        page(text, table=entry).corrected() == "| t | A | C |\n|---|---|---|\n| 5 | 55 | |\n| 10 | 105 | |\n\nAfter.\n"
    )
    with pytest.raises(SpecificationError, match="no row has method=Z; of those there are A, B, C"):
        page(text, table={**entry, "variables": {"t": ["5"], "other": ["Z"]}}).corrected()
    with pytest.raises(SpecificationError, match=r"no table with the head '\| t \| B \|'"):
        page(text, table={**entry, "head": "| t | B |"}).corrected()


@pytest.mark.parametrize(
    "value",
    [f"{SD}; trials=7", "sd.csv; mean nothing", "sd.csv; mean return_last; size=5", "no.csv; mean a", "sd.csv; seed"],
)
def test_what_no_file_answers_is_an_error(files: Path, value: str) -> None:
    with pytest.raises(SpecificationError):
        _ = page("It has 55 of 500.", number={"text": "has {} of", "value": value}).corrections


def test_what_counts_as_unbound(files: Path) -> None:
    text = (
        "In 2020 (Figure 2a), from 1,000 rows: 55 and `12`, ours 480.\n\n"
        "`python benchmarks/x.py` prints 77.\n\n```\n88\n```\n\n- worth 3.5%"
    )
    entry = {"text": "rows: {} and", "value": f"{SD}; trials=5"}
    assert page(text, number=entry).unbound() == [(1, "480"), (9, "3.5%")]
