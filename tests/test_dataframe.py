"""Tables in and out: every row lands where it should, and every bad table gets one line that shows no patient."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from counterpoint.core.errors import CounterpointError, CounterpointWarning
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.storage import read, write
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.transitions import COLUMNS, NAMES, Transitions, concatenate

ROLES: dict[str, Any] = {"subject": "id", "time": "hour", "state": ["HR", "BP"], "action": "dose", "reward": "r"}
SECRET = 77.125


def records(**changes: list[Any]) -> dict[str, list[Any]]:
    """Ann has three rows, Bob two, out of order; done marks the last of each."""
    columns: dict[str, list[Any]] = {
        "id": ["bob", "ann", "ann", "bob", "ann"],
        "hour": [5, 8, 0, 1, 4],
        "HR": [51.0, 12.0, 10.0, 50.0, 11.0],
        "BP": [-51.0, -12.0, -10.0, -50.0, -11.0],
        "dose": [0.2, 0.1, 0.0, 0.1, 0.2],
        "r": [4.0, 2.0, 0.0, 3.0, 1.0],
        "done": [True, True, False, False, False],
    }
    return columns | changes


def load(columns: dict[str, list[Any]] | None = None, **options: Any) -> Transitions:
    return from_dataframe(pd.DataFrame(records() if columns is None else columns), **{**ROLES, **options})


def refuse(columns: Any = None, **options: Any) -> str:
    """The error's one line."""
    with pytest.raises(CounterpointError) as caught:
        load(columns, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(SECRET) not in message
    return message


def same(left: Transitions, right: Transitions) -> bool:
    """Bit for bit, types and names included."""
    columns = [(getattr(left, name), getattr(right, name)) for name in COLUMNS]
    alike = [
        a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes() for a, b in columns
    ]
    return all(alike) and all(getattr(left, name) == getattr(right, name) for name in NAMES)


def big(seed: int, subjects: int = 30) -> pd.DataFrame:
    """Records of unequal length whose state tells its subject and hour, with outcomes in the middle, shuffled."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 9, subjects)
    subject = np.repeat(np.arange(subjects), length)
    hour = np.concatenate([np.sort(rng.choice(100, n, replace=False)) for n in length])
    frame = pd.DataFrame({"id": subject, "hour": hour, "HR": subject * 100 + hour, "BP": rng.normal(size=len(hour))})
    frame["dose"] = rng.integers(0, 3, len(frame)) / 10
    frame["r"] = rng.normal(size=len(frame))
    frame["done"] = rng.random(len(frame)) < 0.2
    return frame.sample(frac=1, random_state=seed)


def load_big(table: Any, **options: Any) -> Transitions:
    """The records of `big`, whose hours are at all distances, taken as consecutive."""
    with pytest.warns(CounterpointWarning) as said:
        rows = from_dataframe(table, **{**ROLES, "done": "done", "gaps": "bridge", **options})
    notes = [str(warning.message) for warning in said]
    assert "pairs of rows are not one step of" in notes[0]
    assert all("have no two rows that follow each other" in n or "those of the others" in n for n in notes[1:])
    return rows


def test_terminal_rows_by_hand() -> None:
    table = load(done="done")
    assert table.subject_names == ("ann", "bob")
    assert table.state_names == ("HR", "BP")
    assert table.subject.tolist() == [0, 0, 0, 1, 1]
    assert table.step.tolist() == [0, 1, 2, 0, 1]
    assert table.state[:, 0].tolist() == [10, 11, 12, 50, 51]
    assert table.next_state[:, 1].nan_to_num(0).tolist() == [-11, -12, 0, -51, 0]
    assert table.reward.tolist() == [0, 1, 2, 3, 4]
    assert table.terminated.tolist() == [False, False, True, False, True]
    assert not table.truncated.any()
    assert table.has_next.tolist() == [True, True, False, True, False]
    assert table.action_index.tolist() == [0, 2, 1, 1, 2]


@pytest.mark.parametrize("last", ["truncate", "drop"])
def test_the_last_row_becomes_a_next_state(last: str) -> None:
    table = load(last=last)
    assert table.state[:, 0].tolist() == [10, 11, 50]
    assert table.next_state[:, 0].tolist() == [11, 12, 51]
    assert table.truncated.tolist() == ([False, True, True] if last == "truncate" else [False] * 3)
    assert not table.terminated.any()


def test_last_rules_only_the_ends_that_are_not_marked() -> None:
    columns = records(done=[False, True, False, False, False])
    table = load(columns, done="done", last="truncate")
    assert table.terminated.tolist() == [False, False, True, False]
    assert table.truncated.tolist() == [False, False, False, True]
    assert "row 0" in refuse(columns, done="done")
    assert load(columns, done="done", last="terminal").terminated.tolist() == [False, False, True, False, True]


def test_several_outcomes_are_told_apart() -> None:
    columns = records(died=[False, True, False, False, False], discharged=[1, 0, 0, 0, 0])
    table = load(columns, done=["died", "discharged"])
    assert table.outcome_names == ("died", "discharged")
    assert table.outcome.tolist() == [-1, -1, 0, -1, 1]
    assert table.terminated.tolist() == [False, False, True, False, True]
    assert load(columns, done=["discharged", "died"]).outcome.tolist() == [-1, -1, 1, -1, 0]
    assert load(done="done").outcome_names == ("done",)


def test_an_end_that_no_outcome_marks_is_an_outcome_of_its_own() -> None:
    columns = records(died=[0, 1, 0, 0, 0], discharged=[0, 0, 0, 0, 0])
    table = load(columns, done=["died", "discharged"], last="terminal")
    assert table.outcome_names == ("died", "discharged", "ended")
    assert table.outcome.tolist() == [-1, -1, 0, -1, 2]
    plain = load(columns, last="terminal")
    assert (plain.outcome_names, plain.outcome.tolist()) == (("terminated",), [-1, -1, 0, -1, 0])
    table = load(columns, done=["died", "discharged"], last="truncate")
    assert table.outcome_names == ("died", "discharged"), "an outcome that nobody met keeps its place"
    assert table.outcome.tolist() == [-1, -1, 0, -1]


def test_done_in_the_middle_starts_a_new_episode() -> None:
    table = load(records(done=[True, True, True, False, False]), done="done")
    assert table.episode.tolist() == [0, 1, 1, 2, 2]
    assert table.step.tolist() == [0, 0, 1, 0, 1]
    assert table.has_next.tolist() == [False, True, False, True, False]
    assert table.subject.tolist() == [0, 0, 0, 1, 1]


def test_truncated_column_is_the_records_end() -> None:
    columns = records(done=[0, 1, 0, 0, 0], stop=[1, 1, 0, 0, 0])
    table = load(columns, done="done", truncated="stop")
    assert table.terminated.tolist() == [False, False, True, False], "where both are true the outcome counts"
    assert table.truncated.tolist() == [False, False, False, True]
    assert table.next_state[-1].tolist() == [51, -51]


def test_episode_column_lets_time_begin_again() -> None:
    columns = records(stay=[0, 2, 1, 0, 1], hour=[1, 0, 0, 0, 1])
    table = load(columns, episode="stay", last="terminal")
    assert table.episode.tolist() == [0, 0, 1, 2, 2]
    assert table.step.tolist() == [0, 1, 0, 0, 1]
    assert table.has_next.tolist() == [True, False, False, True, False]
    assert "rows 1 and 2" in refuse(columns, last="terminal"), "without the column ann has hour 0 twice"


def test_next_state_columns_are_taken_as_they_are() -> None:
    columns = records(HR2=[1.0, None, 3.0, 4.0, 5.0], BP2=[6.0, None, 8.0, 9.0, 10.0])
    roles = {"done": "done", "next_state": ["HR2", "BP2"]}
    table = load(columns, **roles)
    assert table.next_state[:, 0].nan_to_num(0).tolist() == [3, 5, 0, 4, 1]
    assert table.terminated.tolist() == [False, False, True, False, True]
    columns["done"] = [False] * 5
    assert "'HR2' has 1 missing value (first at row 1)" in refuse(columns, last="truncate", **roles)
    columns["HR2"][1], columns["BP2"][1] = 2.0, 7.0
    table = load(columns, last="truncate", **roles)
    assert len(table) == 5
    assert table.truncated.tolist() == [False, False, True, False, True]


def test_half_a_next_state_is_refused_even_at_an_outcome() -> None:
    columns = records(HR2=[1.0, 2.0, 3.0, 4.0, 5.0], BP2=[6.0, None, 8.0, 9.0, 10.0])
    assert "'BP2'" in refuse(columns, done="done", next_state=["HR2", "BP2"])


def test_a_dropped_row_needs_no_action_and_no_reward() -> None:
    columns = records(dose=[None, None, 0.0, 0.1, 0.2], r=[None, None, 0.0, 3.0, 1.0])
    table = load(columns, last="truncate")
    assert table.reward.tolist() == [0, 1, 3]
    assert table.actions == Discrete(tuple((float(np.float32(v)),) for v in (0, 0.1, 0.2)))
    assert "'dose' has 2 missing values (first at row 0)" in refuse(columns, last="terminal")
    labelled = load(records(dose=["discharge", None, "a", "b", "a"]), last="drop")
    assert labelled.action_names == ("dose=a", "dose=b")


def test_a_subject_with_no_kept_row_is_not_in_the_data() -> None:
    with pytest.warns(CounterpointWarning, match="^2 subjects have no two rows that follow each other"):
        table = load(records(id=["carl", "bob", "bob", "ann", "bob"]), last="drop")
    assert table.subject_names == ("bob",)
    assert table.subject.tolist() == [0, 0]
    assert table.episode.tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("last", ["terminal", "truncate", "drop"])
@pytest.mark.parametrize("gaps", ["bridge", "cut"])
def test_shifting_never_crosses_an_episode(seed: int, last: Any, gaps: Any) -> None:
    table = load_big(big(seed), last=last, gaps=gaps)
    label = torch.tensor([int(name) for name in table.subject_names])[table.subject]
    assert (table.state[:, 0] // 100 == label).all()
    follows = (table.episode[1:] == table.episode[:-1]).nonzero()[:, 0]
    assert len(follows)
    assert torch.equal(table.next_state[follows], table.state[follows + 1])
    assert ((table.next_state[:, 0] // 100)[table.has_next] == label[table.has_next]).all()
    assert (table.next_state[:, 0] > table.state[:, 0])[table.has_next].all(), "time only runs forward"
    final = torch.ones(len(table), dtype=torch.bool)
    final[follows] = False
    assert not (table.terminated | table.truncated)[~final].any()
    assert torch.equal(table.terminated, ~table.has_next)
    assert bool((table.truncated == (final & table.has_next)).all()) == (last != "drop")
    for episode in table.episode.unique():
        assert table.step[table.episode == episode].tolist() == list(range(int((table.episode == episode).sum())))


def test_windows_of_a_loaded_table_stay_in_one_episode() -> None:
    table = load_big(big(0), last="terminal")
    windows = table.windows(3)
    assert len(windows.rows) == sum(max(0, int(n) - 2) for n in table.episode.bincount())
    assert (table.episode[windows.rows] == table.episode[windows.rows[:, :1]]).all()
    assert (table.step[windows.rows].diff() == 1).all()


def test_the_order_of_rows_does_not_matter() -> None:
    shuffled = big(3)
    ordered = shuffled.sort_values(["id", "hour"])
    assert same(load_big(shuffled, last="truncate"), load_big(ordered, last="truncate"))


def test_every_kind_of_table_gives_the_same_transitions(tmp_path: Path) -> None:
    frame = big(1)
    frame["id"] = "patient " + frame["id"].astype(str)
    frame["HR"] = frame["HR"].astype("Int64")
    frame["hour"] = pd.Timestamp("2150-01-01", tz="UTC") + frame["hour"] * pd.Timedelta(hours=1)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    polars = pl.DataFrame({name: frame[name].to_list() for name in frame})
    given = (frame, polars, tmp_path / "t.csv", str(tmp_path / "t.parquet"))
    tables = [load_big(table, last="terminal") for table in given]
    assert all(same(tables[0], table) for table in tables[1:])


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_large_integer_times_stay_apart(kind: Any) -> None:
    times = [2**62 + i for i in (1, 4, 0, 0, 2)]
    table = from_dataframe(kind(records(hour=times)), **ROLES, done="done")
    assert table.state[:, 0].tolist() == [10, 11, 12, 50, 51]


def test_few_distinct_actions_are_discrete_and_many_a_box() -> None:
    frame = pd.DataFrame({"id": range(51), "hour": 0, "HR": 0.0, "BP": 0.0, "r": 0.0, "dose": np.arange(51.0)[::-1]})
    with pytest.warns(CounterpointWarning, match="^the doses in column 'dose' are continuous: .* cut the doses into"):
        assert from_dataframe(frame, **ROLES, last="terminal").actions == Box((0.0,), (50.0,))
    fewer = from_dataframe(frame.iloc[1:], **ROLES, last="terminal")
    assert fewer.actions == Discrete.of(list(range(50)))
    assert fewer.action_index.tolist() == list(range(49, -1, -1))


def test_pairs_of_doses_are_distinct_as_pairs() -> None:
    columns = records(dose2=[1, 0, 0, 1, 1])
    table = load(columns, action=["dose2", "r"], done="done")
    assert table.actions == Discrete(((0.0, 0.0), (0.0, 2.0), (1.0, 1.0), (1.0, 3.0), (1.0, 4.0)))
    assert table.action_names == ("dose2", "r")
    assert table.action_index.tolist() == [0, 2, 1, 3, 4]


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_labels_become_one_hot(kind: Any) -> None:
    drugs = ["water", "salt", "salt", "water", "iron"]
    table = from_dataframe(kind(records(dose=drugs)), **ROLES, done="done")
    assert table.actions == Discrete.one_hot(3)
    assert table.action_names == ("dose=iron", "dose=salt", "dose=water")
    assert table.action_index.tolist() == [1, 0, 1, 2, 2]
    table = from_dataframe(kind(records(dose=drugs)), **ROLES, done="done", labels=["water", "salt", "iron", "none"])
    assert table.action_index.tolist() == [1, 2, 1, 0, 0]
    assert table.actions == Discrete.one_hot(4)


def test_categories_become_one_hot() -> None:
    frame = pd.DataFrame(records(dose=[3, 1, 1, 3, 2])).astype({"dose": "category"})
    table = from_dataframe(frame, **ROLES, done="done")
    assert table.action_names == ("dose=1", "dose=2", "dose=3")
    assert table.action.sum(1).tolist() == [1] * 5
    polars = pl.DataFrame(records(dose=list("cbbca"))).with_columns(pl.col("dose").cast(pl.Categorical))
    assert from_dataframe(polars, **ROLES, done="done").action_index.tolist() == [1, 0, 1, 2, 2]


def test_a_column_of_indices_picks_wide_actions() -> None:
    space = Discrete(((0.0, 0.0), (0.5, 0.0), (0.0, 0.5)))
    table = load(records(dose=[2, 1, 0, 1, 2]), done="done", actions=space)
    assert table.action.tolist() == [[0, 0], [0, 0.5], [0.5, 0], [0.5, 0], [0, 0.5]]
    assert "[3.0] at row 4" in refuse(records(dose=[2, 1, 0, 1, 3]), done="done", actions=space)


def full() -> Transitions:
    """Real and imagined rows, odd names, odd numbers."""
    odd_name = 'heart, "rate"'
    real = load_big(big(2).rename(columns={"HR": odd_name}), state=[odd_name, "BP"], last="terminal")
    fields = {name: getattr(real, name) for name in COLUMNS}
    count = len(real)
    odd = torch.tensor([1 / 3, -0.0, 1e-45, 3.4e38, 16777217.0, 0.1])
    fields["noise"] = odd.repeat(count, 1)[:, :3].clone() * torch.linspace(-1, 1, count)[:, None]
    fields["reward"] = odd.repeat(count)[:count]
    fields |= {"imagined": torch.ones(count, dtype=torch.bool), "source": torch.arange(count)}
    names = {name: getattr(real, name) for name in NAMES}
    return concatenate([real, Transitions(**fields, **names)])


@pytest.mark.parametrize("suffix", ["csv", "parquet", "CSV"])
def test_round_trip_is_exact(tmp_path: Path, suffix: str) -> None:
    table = full()
    write(table, tmp_path / f"t.{suffix}")
    assert same(read(tmp_path / f"t.{suffix}"), table)
    assert [path.name for path in tmp_path.iterdir()] == [f"t.{suffix}"], "no draft is left behind"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_round_trip_of_few_rows_and_of_doses(tmp_path: Path, suffix: str) -> None:
    with pytest.warns(CounterpointWarning, match="are continuous"):
        table = load(records(), done="done", actions=Box((0.0,), (1 / 3,)))
    for part in (table, table[:1], table[:0]):
        write(part, tmp_path / f"t.{suffix}")
        assert same(read(tmp_path / f"t.{suffix}"), part)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    write(load(done="done"), path)
    before = path.read_bytes()

    def full_disk(draft: Path, target: Path) -> None:
        assert draft.is_file(), "written first, then moved"
        assert draft.parent == target.parent, "written beside the target"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(CounterpointError, match=r"cannot write .*: No space left on device"):
        write(full(), path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_read_refuses_a_foreign_or_changed_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    frame = pd.DataFrame(records())
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    with pytest.raises(CounterpointError, match="from_dataframe or the command's column flags"):
        read(path)
    write(load(done="done"), path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 40])
    with pytest.raises(CounterpointError, match=r"not a readable|changed after|damaged"):
        read(path)


def test_read_refuses_a_csv_that_lost_a_row_or_a_number(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write(load(done="done"), path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(CounterpointError, match="changed after"):
        read(path)
    path.write_text("\n".join([*lines[:-1], lines[-1].replace("51", "private")]) + "\n")
    with pytest.raises(CounterpointError, match="not a readable csv") as caught:
        read(path)
    assert "private" not in str(caught.value)


@pytest.mark.parametrize("name", ["no/such.csv", "t.xlsx", "missing.parquet"])
def test_paths_that_cannot_be(tmp_path: Path, name: str) -> None:
    words = r"there is no f|name it \.csv or (\.tsv or \.csv\.gz or \.tsv\.gz or )?\.parquet"
    with pytest.raises(CounterpointError, match=words):
        read(tmp_path / name)
    with pytest.raises(CounterpointError, match=words):
        from_dataframe(tmp_path / name, **ROLES, done="done")
    if name != "missing.parquet":
        with pytest.raises(CounterpointError, match=words):
            write(load(done="done"), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_malformed_csv_names_the_line_and_no_value(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"id,hour,HR,BP,dose,r,done\n1,0,1,1,0,0,0\n1,1,{SECRET},1,0,0,0,9,9\n")
    with pytest.raises(CounterpointError, match=r"line 3") as caught:
        from_dataframe(path, **ROLES, done="done")
    assert str(SECRET) not in str(caught.value)


def test_blank_and_na_cells_of_a_csv_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for cells, words in (
        ("NA,0,1", "'id' has 1"),
        (",0,1", "'id' has 1"),
        ("x,0,", "'HR' has 1"),
        ("x,0,NA", "'HR' has 1"),
    ):
        path.write_text(f"id,hour,HR,BP,dose,r\ny,0,1,1,0,0\n{cells},1,0,0\n")
        with pytest.raises(CounterpointError, match=rf"column {words} missing value \(first at row 1\)"):
            from_dataframe(path, **ROLES, last="terminal")


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_missing_values_are_counted_and_placed(kind: Any) -> None:
    columns = records(HR=[SECRET, 1.0, None, None, 2.0])
    with pytest.raises(CounterpointError, match=r"column 'HR' has 2 missing values \(first at row 2\); fill or drop"):
        from_dataframe(kind(columns), **ROLES, done="done")
    columns["HR"] = [SECRET, float("nan"), 1.0, 1.0, 1.0]
    with pytest.raises(CounterpointError, match=r"column 'HR' has 1 missing value \(first at row 1\)"):
        from_dataframe(kind(columns), **ROLES, done="done")


BAD = {
    "near name": ({}, {"state": ["hr", "BP"]}, "column 'hr' is not in the table; did you mean 'HR'?"),
    "far name": ({}, {"reward": "survival"}, "column 'survival' is not in the table; the table has id, hour"),
    "twice": ({}, {"state": ["HR", "HR"]}, "named twice"),
    "text": ({"HR": ["1", "2", "x", "3", "4"]}, {}, "column 'HR' is not a number at row 2"),
    "mixed": ({"HR": [SECRET, 1.0, "x", 3.0, 4.0]}, {}, "column 'HR' mixes types (first at row 2)"),
    "text numbers": ({"HR": ["1", "2", "3", "3", "4"]}, {}, "column 'HR' holds numbers as text"),
    "infinite": ({"BP": [SECRET, 1, 2, np.inf, 1]}, {}, "'BP' has 1 infinite or too large values (first at row 3)"),
    "too large": ({"r": [1e39, 1.0, 2.0, 3.0, 1.0]}, {}, "'r' has 1 infinite or too large values (first at row 0)"),
    "duplicate": ({"hour": [5, 8, 8, 1, 4]}, {}, "rows 1 and 2 have the same 'id' and 'hour' (1 such rows)"),
    "text time": ({"hour": ["a", "b", "c", "d", "e"]}, {}, "column 'hour' holds"),
    "no subject": ({"id": ["bob", None, "ann", "bob", "ann"]}, {}, "column 'id' has 1 missing value (first at row 1)"),
    "blank subject": ({"id": ["bob", "ann", "", "bob", "ann"]}, {}, "column 'id' has 1 missing value (first at row 2)"),
    "no time": ({"hour": [5, 8, 0, None, 4]}, {}, "column 'hour' has 1 missing value (first at row 3)"),
    "done": ({"done": [0, 1, 2, 0, 0]}, {}, "column 'done' is not true/false at row 2"),
    "two outcomes": (
        {"died": [1, 0, 0, 0, 0]},
        {"done": ["done", "died"]},
        "row 0 has two outcomes marked among columns 'done', 'died' (1 such rows); keep one",
    ),
    "outside": ({}, {"actions": Discrete.of([0, 0.1])}, "at row 0 is outside the action space {0.0, 0.1} (2 such"),
    "outside box": ({}, {"actions": Box((0.05,), (1.0,))}, "[0.0] at row 2 is outside the action space [0.05]…[1.0]"),
    "label": ({"dose": list("aabac")}, {"labels": ["a", "b"]}, "column 'dose' at row 4 is none of the 2 known labels"),
    "label space": ({"dose": list("aabac")}, {"actions": Discrete.of([0, 1])}, "pass labels="),
    "last": ({}, {"last": "end"}, "is not one of 'truncate', 'terminal', 'drop'"),
    "no choice": ({}, {"done": None}, "2 episodes end without an outcome (first at row 0): no done column"),
    "pairs": ({}, {"next_state": ["HR"]}, "next_state names 1 columns but state names 2"),
    "lonely": ({"id": list("abcde")}, {"done": None, "last": "drop"}, "no episode has two rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_get_one_line(case: str) -> None:
    changes, options, words = BAD[case]
    assert words in refuse(records(**changes), **{"done": "done", **options})


def test_empty_repeated_and_foreign_tables() -> None:
    frame = pd.DataFrame(records())
    for table, words in (
        (frame.iloc[:0], "has no rows"),
        (pd.concat([frame, frame[["HR"]]], axis=1), "two columns of one name|occurs 2 times"),
        (records(), "cannot read a table from dict"),
        (pl.DataFrame(records()).lazy(), "collected, not lazy"),
    ):
        with pytest.raises(CounterpointError, match=words):
            from_dataframe(table, **ROLES, done="done")
