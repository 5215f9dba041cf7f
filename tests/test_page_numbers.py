"""A number on a page is that of its file; what has no file gets no more."""

import json
from pathlib import Path

import pytest

import keep_benchmark
import number_specs
from number_specs import SpecificationError, answers
from page_numbers import false_claims, found_in, mismatches, missing_quotes, pages, rewritten, unbound

SD = "sd.csv; mean return_selected; method=A"
LEAST = 1100
MOST_UNBOUND = {
    "README.md": 5, "beyond.md": 5, "evaluation.md": 25, "paper_to_code.md": 12, "quickstart.md": 1, "report.md": 3,
    "reproduction.md": 4, "sepsis.md": 53, "subjects.md": 6, "tables.md": 9,
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


def test_every_number_is_its_files() -> None:
    wrong = [f"{path.name}: {line}" for path in pages() for line in mismatches(path.read_text())]
    assert not wrong, "\n".join([*wrong, "run: python tools/page_numbers.py --write"])
    assert sum(each.count for path in pages() for each in found_in(path.read_text())) >= LEAST


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_claims_in_words_hold(path: Path) -> None:
    assert not false_claims(path.read_text())
    assert not missing_quotes(path.read_text())


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
def test_a_claim_holds_for_all_pairs_or_is_false(files: Path, claim: str, true: bool) -> None:
    assert (not false_claims(f"It is above<!-- claim: {claim} --> it.")) == true


def test_a_claim_that_compares_other_counts_is_an_error(files: Path) -> None:
    with pytest.raises(SpecificationError, match="compares 2 numbers with 3"):
        false_claims(
            f"<!-- claim: {SD}; trials=5 / 10 > sd.csv; difference return_selected by seed; method=A − B; trials=5 -->"
        )


def test_a_quote_stands_on_the_page_it_names(files: Path) -> None:
    (files / "results" / "sd.md").write_text("A is above B at 5 and 10 trials.\n")
    assert not missing_quotes("It is.<!-- quote: sd.md; A is above B at 5 and 10 trials -->")
    assert missing_quotes("One.\n\nTwo.<!-- quote: sd.md; B is above A -->") == [
        "line 3 rests on 'B is above A', which sd.md does not say"
    ]
    with pytest.raises(SpecificationError, match=r"there is no hd\.md"):
        missing_quotes("It is.<!-- quote: hd.md; A -->")


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_no_more_numbers_without_a_file(path: Path) -> None:
    left = unbound(path.read_text())
    assert len(left) <= MOST_UNBOUND.get(path.name, 0), "\n".join(f"line {line}: {text}" for line, text in left)


def test_a_wrong_number_is_put_right(files: Path) -> None:
    page = f"From 5 trials on it has 55 and 9,999<!-- {SD}; trials=5 / 10 --> of 500."
    assert [(each.text, each.wanted) for each in found_in(page)] == [("55", "55"), ("9,999", "105")]
    assert rewritten(page) == page.replace("9,999", "105")
    assert rewritten(rewritten(page)) == rewritten(page)


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
    seconds, total = "benchmarks/speed.json; mean fit.seconds; .2f", "benchmarks/speed.json#rows; sum x"
    page = f"It takes 9.9<!-- {seconds} --> s and 7<!-- {total} -->."
    assert [each.wanted for each in found_in(page)] == ["3.25", "4"]
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


def test_a_table_is_written_from_its_comment(files: Path) -> None:
    told = "| {t} | {mean return_selected; method=A; trials={t}} | {mean return_selected; method={other}; trials={t}} |"
    page = (
        f"<!-- table: sd.csv\nt = 5 / 10\nother = – / C\n| t | A | C |\n|---|---|---|\n{told}\n-->\nold\n<!-- end -->\n"
    )
    assert "\n| t | A | C |\n|---|---|---|\n| 5 | 55 | |\n| 10 | 105 | |\n<!-- end -->" in rewritten(page)
    assert "old" not in rewritten(page)
    with pytest.raises(SpecificationError, match="no row has method=Z; of those there are A, B, C"):
        rewritten(page.replace("other = –", "other = Z"))


@pytest.mark.parametrize(
    "marker",
    [f"{SD}; trials=7", "sd.csv; mean nothing", "sd.csv; mean return_last; size=5", "no.csv; mean a", "sd.csv; seed"],
)
def test_what_no_file_answers_is_an_error(files: Path, marker: str) -> None:
    with pytest.raises(SpecificationError):
        found_in(f"It has 55<!-- {marker} --> of 500.")


def test_what_counts_as_unbound(files: Path) -> None:
    page = (
        f"In 2020 (Figure 2a), from 1,000 rows: 55<!-- {SD}; trials=5 --> and `12`, ours 480.\n\n"
        "`python benchmarks/x.py` prints 77.\n\n```\n88\n```\n\n- worth 3.5%"
    )
    assert unbound(page) == [(1, "480"), (9, "3.5%")]
