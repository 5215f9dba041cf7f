"""Tables from file to file: the same rows as in memory, in pieces, and nothing that was changed is taken for data."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.data import storage
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import COLUMNS, Transitions
from counterpoint.learners.d3qn import (
    D3QN,
    QLearner,
    double_q_objective,
    table,
)
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.streaming import AugmentationWork, StoredPieces, augment
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.cartpole import CartPole
from helpers.recipes import DENSITY

TASK = CartPole()
ROWS = simulate(TASK, random_policy(TASK), 12, 20, 0)
MODEL = DENSITY.fit(ROWS)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoint.simulation.augmentation.PIECE", 50)
    monkeypatch.setattr("counterpoint.data.storage.GROUP", 32)


def same(one: Transitions, other: Transitions) -> bool:
    alike = all(torch.equal(getattr(one, name).nan_to_num(), getattr(other, name).nan_to_num()) for name in COLUMNS)
    return alike and (one.schema, one.subject_names) == (other.schema, other.subject_names)


def stored(path: Path, rows: Transitions = ROWS) -> Path:
    storage.write(rows, path)
    return path


class TestStreaming:
    @pytest.mark.parametrize("alternatives", [None, 3])
    @pytest.mark.parametrize("aside", [(), (0, 5, 11)])
    def test_a_streamed_table_is_the_one_made_in_memory(
        self, tmp_path: Path, alternatives: int | None, aside: tuple[int, ...]
    ) -> None:
        source = StoredPieces.of(stored(tmp_path / "rows.parquet"), aside)
        reports: list[tuple[str, int, int]] = []
        work = AugmentationWork(source, Augmenter(alternatives), MODEL, TASK, 4)
        written = augment(work, tmp_path / "out.parquet", report=lambda *told: reports.append(told))
        training = ROWS[~torch.isin(ROWS.subject, torch.tensor(aside, dtype=torch.long))]
        expected = Augmenter(alternatives).augment(training, MODEL, TASK, 4)
        found = storage.read(tmp_path / "out.parquet")
        assert same(found, expected)
        assert not found.imagined[: len(training)].any()
        assert (written.real, written.imagined) == (len(training), len(expected) - len(training))
        assert written.ends == int((expected.imagined & expected.terminated).sum())
        assert reports == [("augment", i + 1, len(source)) for i in range(len(source))]
        assert len(source) == -(-len(training) // 50) > 3

    def test_every_piece_has_the_factors_of_its_rows(self, tmp_path: Path) -> None:
        seen: list[Tensor] = []

        class Spy:
            def imagine(self, rows: Transitions, action: Tensor, random: torch.Generator, theta: Tensor) -> Tensor:
                seen.append(theta)
                return rows.next_state[:, None].expand(-1, action.shape[1], -1)

            def sample(self, state: Tensor, action: Tensor, random: torch.Generator, theta: Tensor) -> Tensor:
                raise AssertionError

        theta = torch.arange(len(ROWS), dtype=torch.float32)[:, None]
        source = StoredPieces.of(stored(tmp_path / "rows.parquet"))
        augment(AugmentationWork(source, Augmenter(1), Spy(), TASK, 0, theta), tmp_path / "out.parquet")
        assert torch.equal(torch.cat(seen), theta)

    def test_only_the_groups_asked_for_are_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path, read = stored(tmp_path / "rows.parquet"), []
        opened = storage.Stored(path)
        group = opened._group
        monkeypatch.setattr(opened, "_group", lambda number, names: read.append(number) or group(number, names))
        assert same(opened[40:70], ROWS[40:70])
        assert read == [1, 2]
        assert len(opened[70:70]) == 0

    def test_a_table_that_fails_halfway_leaves_no_file(self, tmp_path: Path) -> None:
        def fail() -> None:
            with storage.writing(tmp_path / "out.csv") as put:
                put(ROWS)
                raise CounterpointError("stop")

        with pytest.raises(CounterpointError, match="stop"):
            fail()
        assert not list(tmp_path.iterdir())

    def test_pieces_of_other_tables_are_refused(self, tmp_path: Path) -> None:
        def write() -> None:
            with storage.writing(tmp_path / "out.parquet") as put:
                put(ROWS)
                put(replace(ROWS, outcome_names=("fell",)))

        with pytest.raises(CounterpointError, match="differ in their columns or names"):
            write()


def flipped(place: float) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(place * len(content))] ^= 1
        path.write_bytes(content)

    return flip


def edited_parquet(column: str) -> Callable[[Path], None]:
    """One number changed by a library that keeps the header."""

    def edit(path: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        notes = {"counterpoint": file.metadata.metadata[b"counterpoint"]}
        frame = file.read()
        values = frame[column].to_pylist()
        values[100] += 1
        place = frame.column_names.index(column)
        frame = frame.set_column(place, column, pa.array(values, frame[column].type))
        with parquet.ParquetWriter(path, file.schema_arrow) as writer:
            for start in range(0, len(frame), 32):
                writer.write_table(frame.slice(start, 32))
            writer.add_key_value_metadata(notes)

    return edit


def edited_csv(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    cells = lines[150].split(",")
    cells[0] = "0.125"
    lines[150] = ",".join(cells)
    path.write_text("".join(lines))


def renamed_csv(path: Path) -> None:
    path.write_text(path.read_text().replace("position", "zz"))


class TestChanged:
    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    def test_what_was_not_changed_is_read(self, tmp_path: Path, suffix: str) -> None:
        missing = ROWS.next_state.clone()
        missing[3, 1], missing[4, 1] = torch.nan, -torch.tensor(torch.nan)
        rows = replace(ROWS, next_state=missing)
        assert same(storage.read(stored(tmp_path / f"rows{suffix}", rows)), rows)
        assert len(storage.read(stored(tmp_path / f"none{suffix}", rows[:0]))) == 0

    @pytest.mark.parametrize("place", [i / 23 for i in range(1, 23)])
    def test_a_flipped_bit_is_refused_or_harmless(self, tmp_path: Path, place: float) -> None:
        """Nothing but the numbers that were written is ever given back."""
        path = stored(tmp_path / "rows.parquet")
        flipped(place)(path)
        try:
            assert same(storage.read(path), ROWS)
        except CounterpointError as error:
            assert "\n" not in str(error)  # noqa: PT017

    def test_most_flipped_bits_are_seen(self, tmp_path: Path) -> None:
        refused = 0
        for i in range(1, 23):
            path = stored(tmp_path / "rows.parquet")
            flipped(i / 23)(path)
            try:
                storage.read(path)
            except CounterpointError:
                refused += 1
        assert refused > 15

    @pytest.mark.parametrize("column", ["reward", "subject", "state:position", "action_index"])
    def test_an_edited_number_in_parquet_is_refused(self, tmp_path: Path, column: str) -> None:
        path = stored(tmp_path / "rows.parquet")
        edited_parquet(column)(path)
        with pytest.raises(CounterpointError, match=r"^[^\n]*changed after it was written: its numbers differ[^\n]*$"):
            storage.read(path)

    @pytest.mark.parametrize("edit", [edited_csv, renamed_csv])
    def test_an_edited_csv_is_refused(self, tmp_path: Path, edit: Callable[[Path], None]) -> None:
        path = stored(tmp_path / "rows.csv")
        before = path.read_bytes()
        edit(path)
        assert path.read_bytes() != before
        with pytest.raises(CounterpointError, match=r"^[^\n]*changed after it was written[^\n]*$"):
            storage.read(path)


class TestMapped:
    def test_mapped_rows_are_the_same_and_leave_nothing_behind(self, tmp_path: Path) -> None:
        mapped = storage.read(stored(tmp_path / "rows.parquet"), mapped=True)
        assert same(mapped, ROWS)
        assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
        assert file_behind(mapped.state).startswith(str(tmp_path))
        assert not file_behind(storage.read(tmp_path / "rows.parquet").state).startswith(str(tmp_path))

    def test_one_table_is_learned_from_where_it_lies(self, tmp_path: Path) -> None:
        both = Augmenter(2).augment(ROWS, MODEL, TASK)
        mapped = storage.read(stored(tmp_path / "rows.parquet", both), mapped=True)
        recipe, job = D3QN(hidden=(8,)), Job(mapped)
        learner = QLearner(
            recipe.build(4, TASK.actions.count, 1),
            recipe.build,
            [table(job)],
            recipe,
            double_q_objective(TASK, job),
            None,
        )
        assert learner.state.data_ptr() == mapped.state.data_ptr()
        assert learner.next_state.data_ptr() == mapped.next_state.data_ptr()

    def test_rows_out_of_order_are_put_in_order_for_learning(self) -> None:
        both = Augmenter(1).augment(ROWS, MODEL, TASK)
        mixed = table(Job(both[torch.randperm(len(both), generator=torch.Generator().manual_seed(0))]))
        assert mixed["imagined"].tolist() == [False] * len(ROWS) + [True] * len(ROWS)
        assert torch.equal(mixed["reward"].sort().values, both.reward.sort().values)


def file_behind(tensor: Tensor) -> str:
    """The file that a tensor's memory is mapped from, by the kernel's own word."""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("only Linux says what memory is mapped from")
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5) if len(line.split()) > 5 else (*line.split(), "")
        low, high = (int(edge, 16) for edge in span.split("-"))
        if low <= tensor.data_ptr() < high:
            return name
    return ""
