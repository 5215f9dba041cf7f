"""Reading a user's table: clocks and gaps, ends, files, kinds of columns and missing values, against cases by hand."""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import counterpoint as cp
from counterpoint.data.tables.missing import RIDGE
from helpers.tables import load, noted, refused, ward

NAN = float("nan")
HOW: dict[str, Any] = {"subject": "id", "time": "t", "state": "x", "action": "a", "reward": "r", "done": None}


def records(times: Any, ids: str = "", **columns: Any) -> pd.DataFrame:
    """A row for each time; x counts the rows from 0.5, a is 0 or 1, r is 0; `ids` has a letter a row."""
    count = len(times)
    plain = {"id": list(ids or "a" * count), "t": times, "x": np.arange(count) + 0.5, "a": np.arange(count) % 2}
    return pd.DataFrame(plain | {"r": 0.0} | columns)


def read(table: Any, **how: Any) -> cp.Transitions:
    return load(table, **{**HOW, "last": "truncate", **how})


def steps(rows: cp.Transitions) -> list[tuple[float, float]]:
    """From which x to which."""
    return list(zip(rows.state[:, 0].tolist(), rows.next_state[:, 0].nan_to_num(-1).tolist(), strict=True))


DATES = pd.Timestamp("2020-02-28 20:00") + pd.to_timedelta([0, 4, 8, 20, 24], unit="h")
CLOCKS: dict[str, Any] = {
    "numbers": [0, 4, 8, 20, 24],
    "floats": [0.0, 4.0, 8.0, 20.0, 24.0],
    "dates": DATES,
    "berlin": DATES.tz_localize("Europe/Berlin"),
    "durations": DATES - DATES[0],
    "iso text": DATES.strftime("%Y-%m-%d %H:%M:%S"),
    "iso text with T": DATES.strftime("%Y-%m-%dT%H:%M"),
    "text with a zone": DATES.strftime("%Y-%m-%dT%H:%M:%S+02:00"),
    "us text": DATES.strftime("%m/%d/%Y %H:%M"),
    "us text with seconds": DATES.strftime("%m/%d/%Y %H:%M:%S"),
}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("given", [False, True])
def test_a_gap_is_found_counted_and_cut(clock: str, given: bool) -> None:
    table = records(CLOCKS[clock])
    how = {"step": 4 if clock in ("numbers", "floats") else "4h"} if given else {}
    message = refused(lambda: read(table, **how))
    assert "1 of 4 pairs of rows are not one step of 4" in message.replace("04:00:00", "4")
    assert "in column 't'; choose gaps='cut'" in message
    with pytest.warns(cp.CounterpointWarning, match="^1 of 4 pairs of rows .* were cut: an episode stops there$"):
        rows = read(table, gaps="cut", **how)
    assert steps(rows) == [(0.5, 1.5), (1.5, 2.5), (3.5, 4.5)], "no transition bridges the gap"
    assert rows.truncated.tolist() == [False, True, True]
    assert rows.episode.tolist() == [0, 0, 1]
    assert rows.step.tolist() == [0, 1, 0]
    assert not rows.terminated.any()
    assert len(rows.subject_names) == 1


@pytest.mark.parametrize("clock", ["numbers", "dates"])
def test_a_gap_can_be_bridged(clock: str) -> None:
    with pytest.warns(cp.CounterpointWarning, match="^1 of 4 pairs of rows .* are taken as consecutive$"):
        rows = read(records(CLOCKS[clock]), gaps="bridge")
    assert steps(rows) == [(0.5, 1.5), (1.5, 2.5), (2.5, 3.5), (3.5, 4.5)]
    assert rows.truncated.tolist() == [False, False, False, True]


@pytest.mark.parametrize("last", ["truncate", "drop", "terminal"])
def test_a_gap_is_no_end_whatever_the_last_row_is(last: str) -> None:
    with pytest.warns(cp.CounterpointWarning, match="were cut"):
        rows = read(records([0, 1, 2, 9, 10]), gaps="cut", last=last)
    assert steps(rows)[:3] == [(0.5, 1.5), (1.5, 2.5), (3.5, 4.5)]
    assert rows.truncated.tolist() == [False, True, last == "truncate", False][: len(rows)]
    assert rows.terminated.tolist() == [False, False, False, True][: len(rows)]
    assert len(rows) == (4 if last == "terminal" else 3)


def test_a_given_step_decides_what_a_gap_is() -> None:
    message = refused(lambda: read(records([0, 4, 8, 20, 24]), step=12))
    assert "3 of 4 pairs of rows are not one step of 12 apart" in message
    with pytest.warns(cp.CounterpointWarning, match="3 of 4"):
        assert steps(read(records([0, 4, 8, 20, 24]), step=12, gaps="cut")) == [(2.5, 3.5)]
    with pytest.warns(cp.CounterpointWarning, match="3 of 4 pairs of rows are not one step of 12:00:00"):
        assert steps(read(records(DATES), step="12h", gaps="cut")) == [(2.5, 3.5)]


@pytest.mark.parametrize(
    ("clock", "step"),
    [("numbers", "4h"), ("numbers", 0), ("numbers", -4), ("dates", "soon"), ("dates", 4), ("dates", "4")],
)
def test_a_step_of_no_length_is_refused(clock: str, step: Any) -> None:
    assert f"step='{step}' is not a length of time here" in refused(lambda: read(records(CLOCKS[clock]), step=step))


@pytest.mark.parametrize("jitter", [0.05, 0.2, 0.49])
def test_jitter_below_half_a_step_is_no_gap(jitter: float) -> None:
    times = np.arange(8.0)
    times[3] += jitter
    assert len(read(records(times))) == 7
    dates = pd.Timestamp("2020-01-01") + pd.to_timedelta(4 * times, unit="h")
    assert len(read(records(dates))) == 7
    times[3] += 0.5
    assert "2 of 7 pairs" in refused(lambda: read(records(times)))


def test_tables_with_next_states_are_not_cut() -> None:
    rows = read(records([0, 1, 2, 9, 10], y=np.arange(5.0)), next_state="y")
    assert len(rows) == 5
    assert rows.next_state[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert rows.truncated.tolist() == [False] * 4 + [True]


def test_gaps_are_counted_within_subjects_and_episodes_only() -> None:
    rows = read(records([0, 1, 2, 50, 51, 52], "aaabbb"))
    assert len(rows) == 4
    rows = read(records([0, 1, 50, 51], e=[1, 1, 2, 2]), episode="e")
    assert steps(rows) == [(0.5, 1.5), (2.5, 3.5)]


def test_time_between_an_outcome_and_the_next_episode_is_no_gap() -> None:
    """Discharged, and admitted again weeks later: no transition would bridge it."""
    rows = read(records([0, 1, 2, 50, 51, 52], d=[0, 0, 1, 0, 0, 1]), done="d", last=None)
    assert steps(rows) == [(0.5, 1.5), (1.5, 2.5), (2.5, -1), (3.5, 4.5), (4.5, 5.5), (5.5, -1)]


def test_text_that_is_no_date_is_refused() -> None:
    for times in (["13 Feb 2019", "14 Feb 2019"], ["monday", "tuesday"], ["2020-01-01", "01/02/2020"]):
        assert "column 't' holds text that is no date" in refused(lambda times=times: read(records(times)))


def test_offsets_that_change_are_moments_all_the_same() -> None:
    """With summer time, and with a flight."""
    times = ["2020-03-29T00:00:00+01:00", "2020-03-29T05:00:00+02:00", "2020-03-29T02:00:00-05:00"]
    assert steps(read(records(times), step="4h")) == [(0.5, 1.5), (1.5, 2.5)]


DIED = [1, 1, 1, 0, 0, 0]
"""Whether a and b died, as a table of patients repeats it on every row."""


def test_a_repeated_flag_is_refused_with_the_hint() -> None:
    message = refused(lambda: read(records([0, 1, 2] * 2, "aaabbb", d=DIED), done="d"))
    assert "column 'd' is true on every row of 1 subject," in message
    assert "outcome='last row of the subject'" in message
    assert "outcome='marked row'" in message


WORDS: dict[str, list[Any]] = {
    "numbers": [1, 0],
    "bools": [True, False],
    "yes": ["yes", "no"],
    "Y": ["Y", "N"],
    "died": ["died", "alive"],
    "Deceased": ["Deceased", "survived"],
    "TRUE": ["TRUE", "FALSE"],
    "text numbers": ["1", "0"],
}


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("words", WORDS)
def test_the_dead_end_on_their_last_row_and_survivors_do_not(words: str, kind: Any) -> None:
    dead, alive = WORDS[words]
    table = kind(records([0, 1, 2] * 2, "aaabbb", d=[dead] * 3 + [alive] * 3).to_dict("list"))
    rows = read(table, done="d", outcome="last row of the subject")
    assert steps(rows) == [(0.5, 1.5), (1.5, 2.5), (2.5, -1), (3.5, 4.5), (4.5, 5.5)]
    assert rows.terminated.tolist() == [False, False, True, False, False]
    assert rows.truncated.tolist() == [False, False, False, False, True]
    assert rows.outcome_names == ("d",)


def test_words_of_a_file_are_flags_too(tmp_path: Path) -> None:
    table = records([0, 1, 2] * 2, "aaabbb", d=["died"] * 3 + ["alive"] * 3)
    table.to_csv(tmp_path / "t.csv", index=False)
    rows = read(tmp_path / "t.csv", done="d", outcome="last row of the subject")
    assert rows.terminated.tolist() == [False, False, True, False, False]
    table.assign(d=["died"] * 3 + ["maybe"] * 3).to_csv(tmp_path / "t.csv", index=False)
    message = refused(lambda: read(tmp_path / "t.csv", done="d"))
    assert "column 'd' is not true/false at row 3 (3 such rows); use yes and no" in message


def test_every_marked_row_can_be_an_end() -> None:
    rows = read(records([0, 1, 2] * 2, "aaabbb", d=DIED), done="d", outcome="marked row")
    assert rows.terminated.tolist() == [True, True, True, False, False]
    assert rows.episode.tolist() == [0, 1, 2, 3, 3]


def test_two_repeated_flags_are_two_outcomes() -> None:
    table = records([0, 1, 2] * 2, "aaabbb", d=DIED, left=[1 - x for x in DIED])
    rows = read(table, done=["d", "left"], outcome="last row of the subject", last=None)
    assert rows.outcome.tolist() == [-1, -1, 0, -1, -1, 1]


def test_a_flag_on_earlier_rows_only_is_no_flag_of_the_last_one() -> None:
    table = records([0, 1, 2] * 2, "aaabbb", d=[1, 1, 0, 0, 0, 0])
    message = refused(lambda: read(table, done="d", outcome="last row of the subject"))
    assert "column 'd' is true within 1 subject but not on its last row" in message
    assert read(table, done="d").terminated.tolist() == [True, True, False, False], "as marked"


def test_truncating_does_not_drop_what_looks_like_an_outcome() -> None:
    table = records([0, 1, 2] * 2, "aaabbb").assign(r=[0, 0.1, -15, 0.1, 0, 15])
    message = refused(lambda: read(table))
    assert "would drop the last row of 2 episodes; 2 of them carry a reward in 'r' unlike all others" in message
    assert len(read(table, last="drop")) == 4
    assert read(table, last="terminal").reward.tolist() == pytest.approx([0, 0.1, -15, 0.1, 0, 15])
    assert len(read(table.assign(r=[0, 0.1, 0.05, 0.1, 0, 0.15]))) == 4, "a reward like the others says nothing"
    marked = table.assign(d=[0, 0, 1, 0, 0, 0], r=[0, 0.1, -15, 0.1, 0, 0.1])
    assert read(marked, done="d").reward.min() == -15, "an outcome that is marked is kept"


def test_a_truncated_column_does_not_drop_an_outcome_either() -> None:
    table = records([0, 1, 2] * 2, "aaabbb", s=[0, 0, 1] * 2).assign(r=[0, 0.1, -15, 0.1, 0, 15])
    assert "unlike all others" in refused(lambda: read(table, truncated="s", last=None))


@pytest.mark.parametrize("last", ["truncate", "drop"])
def test_subjects_of_one_row_are_counted(last: str) -> None:
    table = records([0, 1, 0, 0, 5], "aabcc").iloc[[0, 1, 2, 3]].assign(id=list("aabc"))
    rows, notes = noted(table, **{**HOW, "last": last})
    assert rows.subject_names == ("a",)
    assert notes == ["2 subjects have no two rows that follow each other and no marked outcome: they give no row"]
    assert len(read(table, last="terminal")) == 4


PLAIN = [("007", 0, 1.5, 0, 0.25), ("007", 1, 2.5, 1, 0.25), ("7", 0, 3.5, 1, 0.25), ("7", 1, 4.5, 0, 0.25)]


def written(path: Path, rows: list[Any] = PLAIN, comma: str = ",", point: str = ".", encoding: str = "utf-8") -> Path:
    lines = [["id", "t", "x", "a", "r"], *([str(cell).replace(".", point) for cell in row] for row in rows)]
    data = ("\n".join(comma.join(line) for line in lines) + "\n").encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


FILES: dict[str, dict[str, str]] = {
    "t.csv": {},
    "t.CSV": {},
    "t.v2.csv": {},
    "t.csv.gz": {},
    "t.tsv": {"comma": "\t"},
    "t.tsv.gz": {"comma": "\t"},
    "tabs.csv": {"comma": "\t"},
    "semicolons.csv": {"comma": ";"},
    "commas.csv": {"comma": ";", "point": ","},
    "commas.csv.gz": {"comma": ";", "point": ","},
}


@pytest.mark.filterwarnings("ignore:.*like another but for")
@pytest.mark.parametrize("name", FILES)
def test_007_and_7_are_two_subjects_in_every_kind_of_file(name: str, tmp_path: Path) -> None:
    rows = read(written(tmp_path / name, **FILES[name]))
    assert rows.subject_names == ("007", "7")
    assert steps(rows) == [(1.5, 2.5), (3.5, 4.5)]
    assert rows.reward.tolist() == [0.25, 0.25]


@pytest.mark.filterwarnings("ignore:.*like another but for")
def test_007_and_7_are_two_episodes_and_two_subjects_of_a_frame(tmp_path: Path) -> None:
    table = pd.DataFrame(PLAIN, columns=["id", "t", "x", "a", "r"])
    table.assign(e=table["id"], id=1).to_csv(tmp_path / "t.csv", index=False)
    rows = read(tmp_path / "t.csv", episode="e")
    assert rows.episode.tolist() == [0, 1]
    assert read(table).subject_names == ("007", "7")


UMLAUT = [("Jürgen", *row[1:]) for row in PLAIN[:2]]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_latin_1_is_refused_with_a_hint_and_read_when_it_is_named(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, UMLAUT, encoding="latin-1")
    assert "is not text in utf-8; pass encoding='latin-1'" in refused(lambda: read(path))
    assert read(path, encoding="latin-1").subject_names == ("Jürgen",)
    assert read(written(tmp_path / name, UMLAUT)).subject_names == ("Jürgen",)
    assert "is not text in klingon" in refused(lambda: read(path, encoding="klingon"))


def test_a_latin_1_header_is_refused_with_a_hint_and_read_when_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id,t,größe,a,r\nb,0,1.5,0,0\nb,1,2.5,1,0\n".encode("latin-1"))
    assert steps(read(path, state="größe", encoding="latin-1")) == [(1.5, 2.5)]
    assert "is not text in utf-8; pass encoding='latin-1'" in refused(lambda: read(path, state="größe"))


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S"])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_dates_of_a_file(form: str, suffix: str, tmp_path: Path) -> None:
    table, path = records(DATES.strftime(form)), tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    with pytest.warns(cp.CounterpointWarning, match="1 of 4 pairs of rows are not one step of 04:00:00 apart"):
        assert steps(read(path, gaps="cut")) == [(0.5, 1.5), (1.5, 2.5), (3.5, 4.5)]


def test_moments_are_compared_across_zones(tmp_path: Path) -> None:
    """As pandas writes Berlin's clock over the change to summer time."""
    times = pd.date_range("2020-03-28 16:00", periods=5, freq="4h", tz="Europe/Berlin")
    records(times).to_csv(tmp_path / "t.csv", index=False)
    assert len(read(tmp_path / "t.csv", step="4h")) == 4
    assert len(read(records(times), step="4h")) == 4


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "complex state": ({"x": [1j] * 3}, "column 'x' holds"),
    "complex reward": ({"r": [1j] * 3}, "column 'r' holds"),
    "bytes ids": ({"id": [b"a"] * 3}, "column 'id' holds bytes, not text; decode it"),
    "list state": ({"x": [[1, 2]] * 3}, "column 'x'"),
    "list ids": ({"id": [[1, 2]] * 3}, "column 'id' holds list"),
    "dates as state": ({"x": DATES[:3]}, "column 'x'"),
    "mixture": ({"x": [1, "b", 2.0]}, "column 'x' mixes types (first at row 1)"),
    "one level": ({"x": ["b"] * 3}, "'x' has one level only"),
}


@pytest.mark.parametrize("case", ODD)
def test_columns_of_no_use_are_one_line(case: str) -> None:
    columns, words = ODD[case]
    assert words in refused(lambda: read(records([0, 1, 2]).assign(**columns)))


WRONG: list[tuple[str, Any]] = [
    ("subject", 5), ("subject", None), ("subject", ["id"]), ("time", None), ("state", 5), ("state", [5]), ("state", ""),
    ("state", None), ("action", 5), ("action", ""), ("action", []), ("reward", ["r"]), ("reward", ""), ("done", 5),
    ("done", [5]), ("done", True), ("truncated", ["s"]), ("truncated", True), ("episode", 5), ("next_state", 5),
    ("actions", 5), ("actions", "x"), ("actions", {}), ("actions", [1, 2]), ("actions", cp.Bins), ("labels", 5),
    ("labels", ["0", "0"]), ("last", "stop"), ("last", 5), ("outcome", "dead"), ("step", []), ("step", True),
    ("gaps", "fill"), ("categorical", 5), ("categorical", [5]), ("categorical", {"x": 5}), ("categorical", [["x"]]),
    ("categorical", "weight"), ("numeric", 5), ("numeric", "weight"), ("units", 5), ("units", "mg"), ("units", ["mg"]),
    ("units", {"weight": "kg"}), ("units", {"x": 5}), ("missing", None), ("missing", "zero"), ("carry_forward", None),
    ("carry_forward", "3"), ("carry_forward", -1), ("carry_forward", NAN), ("masks", 5), ("masks", "weight"),
    ("masks", ["x", "x"]), ("encoding", None), ("encoding", 5), ("held_out", None), ("held_out", "half"),
    ("held_out", 1), ("like", 5), ("like", "schema"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: repr(value)[:24])
def test_wrongly_typed_arguments_are_one_line(name: str, value: Any) -> None:
    assert refused(lambda: read(records([0, 1, 2]), **{name: value}))


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("x", np.arange(1, 7) * 1e-300, "column 'x' has 6 values so small that single precision makes them 0"),
        ("x", 1.7e9 + np.arange(6) * 60.0, "column 'x' loses digits in single precision; subtract an offset"),
        ("r", [1e-300] * 6, "values so small that single precision makes them 0"),
    ],
)
def test_what_single_precision_loses_is_said(column: str, values: Any, words: str) -> None:
    _, notes = noted(records(range(6)).assign(**{column: values}), **{**HOW, "last": "truncate"})
    assert len(notes) == 1
    assert words in notes[0]


@pytest.mark.parametrize("doses", [np.arange(6) % 2 * 1e-300, 1.7e9 + np.arange(6) % 2])
def test_doses_that_single_precision_makes_one_are_noticed(doses: Any) -> None:
    with pytest.raises((cp.CounterpointError, cp.CounterpointWarning), match="'a'"):
        read(records(range(6)).assign(a=doses))


def test_words_flags_and_numbers_are_told_apart() -> None:
    table = ward().assign(flag=lambda t: t["vent"] == 1, two=lambda t: t["vent"] + 1.0, real=lambda t: 1.0 * t["vent"])
    rows = load(table, state=["lactate", "age", "vent", "flag", "two", "real", "sex", "unit"])
    levels = {column.name: column.levels for column in rows.schema.states}
    binary, plain = ("0", "1"), ()
    assert levels == {
        "lactate": plain, "age": plain, "vent": binary, "flag": binary, "two": plain, "real": binary,
        "sex": ("f", "m"), "unit": ("er", "home", "icu"),
    }  # fmt: skip
    assert rows.schema.categories == ((2, 2), (3, 2), (5, 2), (6, 2), (7, 3))
    assert [rows.state_names[place] for place in rows.schema.static] == ["age", "sex"]
    assert rows.state[:5, 3].tolist() == table["vent"][:5].tolist()
    assert rows.state[:5, 7].tolist() == table["unit"][:5].map({"er": 0, "home": 1, "icu": 2}).tolist()


def test_a_column_is_what_it_is_declared_to_be() -> None:
    table = ward().assign(stage=lambda t: t["vent"] + 1)
    rows = load(
        table,
        state=["lactate", "vent", "unit", "stage"],
        categorical={"unit": ["icu", "er", "home", "away"], "stage": []},
        numeric=["vent"],
    )
    levels = [column.levels for column in rows.schema.states]
    assert levels == [(), (), ("icu", "er", "home", "away"), ("1", "2")]
    assert rows.state[:5, 2].tolist() == table["unit"][:5].map({"icu": 0, "er": 1, "home": 2}).tolist()
    assert rows.state[:5, 3].tolist() == (table["stage"][:5] - 1).tolist()
    words = refused(lambda: load(state="unit", categorical={"unit": ["er", "home"]}))
    assert "column 'unit' at row" in words
    assert "is none of the 2 known labels" in words
    both = refused(lambda: load(state="unit", categorical=["unit"], numeric=["unit"]))
    assert "declared both categorical and numeric" in both
    assert "column 'unit' is not a number at row 0" in refused(lambda: load(state="unit", numeric=["unit"]))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_ordered_levels_keep_their_order(kind: str) -> None:
    levels, table = ["home", "er", "icu"], ward()
    if kind == "pandas":
        table["unit"] = pd.Categorical(table["unit"], levels, ordered=True)
    else:
        table = pl.DataFrame(table.to_dict("list")).with_columns(pl.col("unit").cast(pl.Enum(levels)))
    assert load(table, state=["lactate", "unit"]).schema.states[1].levels == tuple(levels)


def test_numbered_categories_of_pandas_are_categories() -> None:
    table = ward().assign(vent=lambda t: pd.Categorical(t["vent"] + 1))
    assert load(table, state=["lactate", "vent"]).schema.states[1].levels == ("1", "2")


def test_free_text_is_no_category() -> None:
    table = ward().assign(note=[f"note {i}" for i in range(144)])
    assert "state column 'note' has 144 levels" in refused(lambda: load(table, state=["lactate", "note"]))
    stray = ward().assign(age=lambda t: t["age"].astype(str).where(t.index != 5, "n/a"))
    assert "column 'age' is not a number at row 5" in refused(lambda: load(stray, state=["lactate", "age"]))


def test_numbers_with_thousands_are_no_categories(tmp_path: Path) -> None:
    rows = [(who, time, f"1.00{i},5", dose, 0) for i, (who, time, _, dose, _) in enumerate(PLAIN)]
    assert "column 'x'" in refused(lambda: read(written(tmp_path / "t.csv", rows, ";", point=".")))


def gone(x: list[float], times: Any = None, ids: str = "", **how: Any) -> list[float]:
    """x after it was filled, beside a column that is never missing; every row is kept."""
    table = records(range(len(x)) if times is None else times, ids, x=x, y=np.arange(len(x)) ** 2)
    return read(table, **{"state": ["x", "y"], "last": "terminal", **how}).state[:, 0].tolist()


def test_values_are_carried_forward_for_so_many_steps() -> None:
    x = [1.0, NAN, NAN, NAN, 5.0, NAN]
    assert gone(x, carry_forward=3) == [1, 1, 1, 1, 5, 5]
    assert "'x' has 1 missing value (first at row 3)" in refused(lambda: gone(x, carry_forward=2))
    assert "'x' has 2 missing values (first at row 2)" in refused(lambda: gone(x, carry_forward=1))
    assert "'x' has 4 missing values (first at row 1)" in refused(lambda: gone(x))
    assert gone(x, carry_forward=1, missing="mean") == pytest.approx([1, 1, 3, 3, 5, 5])


@pytest.mark.parametrize("clock", ["numbers", "dates"])
def test_a_carried_value_ages_by_the_clock(clock: str) -> None:
    """Row 3 comes three steps after row 2, so that the value of row 1 is then four steps old."""
    x, expected = [1.0, 7.0, NAN, NAN, 9.0], [1, 7, 7, 7, 9]
    with pytest.warns(cp.CounterpointWarning, match="as consecutive"):
        assert gone(x, CLOCKS[clock], gaps="bridge", carry_forward=4) == expected
    message = refused(lambda: gone(x, CLOCKS[clock], gaps="bridge", carry_forward=3))
    assert "'x' has 1 missing value (first at row 3)" in message


def test_nothing_is_carried_from_one_subject_to_another() -> None:
    x = [1.0, 2.0, NAN, 4.0, 5.0, NAN]
    assert "'x' has 1 missing value (first at row 2)" in refused(
        lambda: gone(x, [0, 1, 0, 1, 2, 3], "aabbbb", carry_forward=9)
    )


def test_nothing_is_carried_into_an_episode_where_time_begins_again() -> None:
    x = [1.0, 2.0, 3.0, NAN, 5.0]
    how: dict[str, Any] = {"episode": "e", "last": "terminal", "state": ["x", "y"], "carry_forward": 1}
    table = records([0, 1, 2, 0, 1], x=x, y=np.arange(5) ** 2, e=[1, 1, 1, 2, 2])
    assert "'x' has 1 missing value (first at row 3)" in refused(lambda: read(table, **how))
    assert read(table, **how, missing="mean").state[3, 0] == pytest.approx(11 / 4)


def test_a_value_measured_once_is_not_known_before() -> None:
    """One value a subject is no proof that a column never changes."""
    x = [NAN, 1.0, NAN, NAN, NAN, 2.0, NAN, NAN]
    filled = gone(x, [0, 1, 2, 3] * 2, "aaaabbbb", carry_forward=9, missing="mean")
    assert filled == [1.5, 1, 1, 1, 1.5, 2, 2, 2]


def test_a_static_column_takes_the_subjects_own_value() -> None:
    x = [NAN, 1.0, 1.0, 3.0, NAN, 3.0]
    assert gone(x, [0, 1, 2] * 2, "aaabbb", missing="median") == [1, 1, 1, 3, 3, 3]
    assert "'x' has 2 missing values (first at row 0)" in refused(lambda: gone(x, [0, 1, 2] * 2, "aaabbb"))
    changing = [NAN, 1.0, 2.0, 3.0, NAN, 3.0]
    assert gone(changing, [0, 1, 2] * 2, "aaabbb", missing="median") == [2.5, 1, 2, 3, 2.5, 3]


def torn(seed: int = 0) -> pd.DataFrame:
    """The ward with a fifth of the lactate and a tenth of the doses gone, and lactate that follows the others."""
    table, random = ward(), np.random.default_rng(seed)
    table["lactate"] = 0.8 * table["dose"] - 0.5 * table["fluid"] + 0.3 * table["lactate"]
    table["lactate"] = table["lactate"].mask(random.random(len(table)) < 0.2)
    table["dose"] = table["dose"].mask(random.random(len(table)) < 0.1)
    return table


COLUMNS = ["lactate", "dose", "fluid"]


def kept(table: pd.DataFrame) -> pd.DataFrame:
    """Rows that are not dropped."""
    return table[table["died"] | (table["hour"] < 20)]


@pytest.mark.parametrize("method", ["median", "mean"])
def test_fills_are_the_median_or_the_mean(method: Any) -> None:
    table = torn()
    rows = load(table, state=COLUMNS, missing=method)
    expected = kept(table)[COLUMNS].agg(method)
    for place, column in enumerate(rows.schema.states):
        assert column.fill is not None
        assert column.fill.value == pytest.approx(expected.iloc[place])
        assert column.fill.weights == ()
    whole = kept(table)[COLUMNS].fillna(expected)
    np.testing.assert_allclose(rows.state.numpy(), whole.to_numpy(), rtol=1e-6)


def test_linear_fills_are_ridge_regressions_on_what_is_there() -> None:
    """Against the normal equations: deviations from the medians, those that are missing 0, over standard deviations."""
    table = torn()
    rows = load(table, state=COLUMNS, missing="linear")
    values = kept(table)[COLUMNS].to_numpy()
    middle = np.nanmedian(values, 0)
    around = np.where(np.isnan(values), 0.0, values - middle)
    known = ~np.isnan(values[:, 0])
    scale = around[known, 1:].std(0)
    x, y = around[known, 1:] / scale, around[known, 0]
    weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(2), x.T @ y) / scale
    fill = rows.schema.states[0].fill
    assert fill is not None
    assert fill.value == pytest.approx(middle[0])
    np.testing.assert_allclose(fill.weights, [0, *weights], rtol=1e-6)
    assert weights[0] > 0.4
    assert weights[1] < -0.3
    expected = np.where(known, values[:, 0], middle[0] + around[:, 1:] @ weights)
    np.testing.assert_allclose(rows.state[:, 0].numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["median", "mean", "linear"])
def test_a_category_takes_its_commonest_level(method: Any) -> None:
    table = ward()
    table["unit"] = table["unit"].where(table.index % 5 != 2, None)
    rows = load(table, state=["lactate", "unit"], missing=method)
    commonest = kept(table)["unit"].value_counts().idxmax()
    expected = kept(table)["unit"].fillna(commonest).map({"er": 0, "home": 1, "icu": 2})
    assert rows.state[:, 1].tolist() == expected.tolist()
    assert "column 'unit' has 29 missing values (first at row 2)" in refused(
        lambda: load(table, state=["lactate", "unit"])
    )


def test_masks_say_what_was_missing_now_and_next() -> None:
    table = torn()
    rows = load(table, state=COLUMNS, missing="median", carry_forward=2, masks=["dose", "lactate"])
    assert rows.state_names == (*COLUMNS, "dose_missing", "lactate_missing")
    assert [column.mask_of for column in rows.schema.states] == ["", "", "", "dose", "lactate"]
    assert rows.schema.states[3].levels == ("0", "1")
    assert rows.state[:, 3].tolist() == kept(table)["dose"].isna().astype(float).tolist()
    assert rows.state[:, 4].tolist() == kept(table)["lactate"].isna().astype(float).tolist()
    assert rows.state[:, 3].any()
    going = rows.with_next()
    follows = table.groupby("id")["lactate"].shift(-1).isna()[kept(table).index][rows.has_next.numpy()]
    assert going.next_state[:, 4].tolist() == follows.astype(float).tolist()
    table["y"] = 0.0
    both = refused(lambda: load(table, state="lactate", masks="lactate", next_state="y", missing="mean"))
    assert "masks need the next row" in both


@pytest.mark.filterwarnings("ignore:column .* times those of the others")
@pytest.mark.parametrize("method", ["median", "mean", "linear"])
def test_held_out_subjects_do_not_move_the_fills(method: Any) -> None:
    how: dict[str, Any] = {"state": COLUMNS, "missing": method, "held_out": 0.25, "seed": 3}
    table = torn()
    rows = load(table, **how)
    kept_aside = rows.split(0.25, 3)[1]
    whose = {rows.subject_names[i] for i in kept_aside.subject.unique().tolist()}
    assert len(whose) == 6
    other = next(name for name in rows.subject_names if name not in whose)
    for subjects, same in ((whose, True), ({other}, False)):
        changed = table.copy()
        changed.loc[changed["id"].isin(subjects), COLUMNS] += 50
        assert (load(changed, **how).schema.states == rows.schema.states) == same


def test_held_out_subjects_do_not_decide_what_is_static() -> None:
    """A column that never changes among training subjects is filled as such, whatever a held-out one does."""
    how: dict[str, Any] = {"state": ["lactate", "age"], "missing": "median", "held_out": 0.25, "seed": 3}
    table = ward()
    table["age"] = table["age"].mask(table.index % 6 == 1)
    rows = load(table, **how)
    kept_aside = rows.split(0.25, 3)[1]
    changed = table.copy()
    changed.loc[changed["id"] == rows.subject_names[int(kept_aside.subject[0])], "age"] += np.arange(6)
    training = load(changed, **how).split(0.25, 3)[0]
    assert torch.equal(training.state, rows.split(0.25, 3)[0].state)


@pytest.mark.parametrize("how", [{"missing": "median"}, {"action": "dose", "actions": cp.Bins()}])
def test_a_table_that_has_learned_is_split_as_it_was_learned(how: dict[str, Any]) -> None:
    table = torn()
    table["dose"] = table["dose"].fillna(0.0)
    table["lactate"] = table["lactate"].fillna(0.0) if "action" in how else table["lactate"]
    rows = load(table, state="lactate", held_out=0.25, seed=3, **how)
    assert rows.schema.learned_with == (0.25, 3)
    assert len(rows.split(0.25, 3)[1].subject.unique()) == 6
    for share, seed in ((0.5, 3), (0.25, 4)):
        message = refused(lambda share=share, seed=seed: rows.split(share, seed))
        assert f"load the table with held_out={share}, seed={seed}" in message
    assert len(rows.split(0.0)[0]) == len(rows)
    refused(lambda: load(table, state="lactate", **how).split(0.25))
    plain = load(ward(), state="lactate", held_out=0.25)
    assert plain.schema.learned_with is None
    assert len(plain.split(0.5, 1)[1].subject.unique()) == 12


def test_another_table_is_read_like_the_first() -> None:
    how: dict[str, Any] = {"missing": "linear", "masks": ["lactate"], "action": ["drug", "dose"], "actions": cp.Bins()}
    table = ward()
    table["lactate"] = table["lactate"].mask(table.index % 7 == 3)
    rows = load(table, units={"lactate": "mmol/L"}, **how)
    new = ward(8, seed=5).assign(unit="icu", drug="salt")
    new["lactate"] = (3 * new["lactate"]).mask(new.index % 4 == 1)
    new["age"] = new["age"].mask(new.index % 6 == 1, NAN)
    read_again = cp.from_dataframe(new, like=rows)
    assert read_again.schema == rows.schema
    lost = kept(new)["lactate"].isna().to_numpy()
    assert read_again.state[:, 5].tolist() == lost.astype(float).tolist()
    assert set(read_again.state[:, 4].tolist()) == {2.0}, "icu is the third level, though the only one here"
    centres = np.array([column.fill.value for column in rows.schema.states[:5]])
    fill = rows.schema.states[0].fill
    assert fill is not None
    around = read_again.state[:, :5].numpy() - centres
    expected = fill.value + around @ np.array(fill.weights)
    np.testing.assert_allclose(read_again.state[:, 0].numpy()[lost], expected[lost], rtol=1e-4)
    drug, dose = rows.schema.doses
    codes = 2 * dose.count + dose.codes(kept(new)["dose"].to_numpy())
    assert (drug.labels, read_again.action_index.tolist()) == (("iron", "none", "salt"), codes.tolist())


def test_what_is_static_is_for_the_first_table_to_say() -> None:
    """A new subject whose lactate was the same twice has no lactate that never changes."""
    table = ward()
    rows = load(
        table.assign(lactate=table["lactate"].mask(table.index % 7 == 3)), state=["lactate", "age"], missing="mean"
    )
    assert rows.schema.static == (1,)
    new = ward(1).assign(lactate=[5.0, 5.0, NAN, NAN, 5.0, 5.0], age=[NAN, 70.0, NAN, 70.0, NAN, NAN])
    states = cp.from_dataframe(new, like=rows).state
    usual = rows.schema.states[0].fill
    assert usual is not None
    assert states[:, 0].tolist() == pytest.approx([5.0, 5.0, usual.value, usual.value, 5.0, 5.0])
    assert states[:, 1].tolist() == [70.0] * 6


def test_a_later_value_of_a_column_that_was_static_is_not_known_before() -> None:
    """Age never changed among the first subjects; a new one's does, and its hole is not filled from the future."""
    rows = load(ward().assign(age=lambda t: t["age"].mask(t.index % 6 == 1)), state=["lactate", "age"], missing="mean")
    assert rows.schema.static == (1,)
    new = ward(1).assign(age=[70.0, NAN, 50.0, 50.0, 50.0, 50.0])
    assert cp.from_dataframe(new, like=rows).state[1, 1] != 50


def test_a_refusal_does_not_show_the_levels_found_in_patients_cells() -> None:
    table = records([0, 1, 2], x=["sepsis", "stroke", "sepsis"], y=["stroke", "moon", "stroke"])
    words = refused(lambda: read(table, next_state="y"))
    assert words.startswith("column 'y' at row 1 is none of the 2 known labels (1 such rows);")
    assert not any(level in words for level in ("sepsis", "stroke", "moon"))


def test_another_table_must_be_like_the_first() -> None:
    rows = load()
    assert "'unit' at row 0 is none of the 3 known labels" in refused(
        lambda: cp.from_dataframe(ward().assign(unit="moon"), like=rows)
    )
    assert "'drug' at row 0 is none of the 3 known labels" in refused(
        lambda: cp.from_dataframe(ward().assign(drug="zinc"), like=rows)
    )
    assert "column 'age' is not in the table" in refused(
        lambda: cp.from_dataframe(ward().drop(columns="age"), like=rows)
    )
    torn_table = ward().assign(age=lambda t: t["age"].mask(t["id"] == "p03"))
    assert "'age' has 6 missing values (first at row 18)" in refused(lambda: cp.from_dataframe(torn_table, like=rows))
    handmade = replace(rows, layout=None)
    assert "like has rows that were not read from a table" in refused(lambda: cp.from_dataframe(ward(), like=handmade))


def test_the_step_of_the_first_table_is_that_of_the_next() -> None:
    rows = load()
    every_eight = ward().query("hour % 8 == 0")
    assert "are not one step of 4 apart" in refused(lambda: cp.from_dataframe(every_eight, like=rows))


def test_a_step_is_read_where_every_row_is_an_episode_too() -> None:
    """One step of four hours is fresh enough to carry; nonsense is refused though no two rows are compared."""
    rows = ward().assign(died=True, lactate=lambda t: t["lactate"].mask(t.index % 6 == 1))
    carried = load(rows, state=["lactate", "age"], missing="mean", carry_forward=1, step="4", outcome="marked row")
    assert carried.state[1, 0] == carried.state[0, 0]
    assert "step" in refused(lambda: load(rows, state=["age"], step="soon", outcome="marked row"))
