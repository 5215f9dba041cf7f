"""One table for real and imagined rows, and the action spaces that describe its actions."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from jaxtyping import config

from counterpoint.core.errors import CounterpointError
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Box, Discrete, check_actions
from counterpoint.data.transitions import COLUMNS, Transitions, concatenate, first_outcome


def table(lengths: tuple[int, ...] = (4, 2, 5)) -> Transitions:
    """Episodes of the given lengths, one subject each; the state is (episode, step); each ends without a next state."""
    episode = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    step = torch.cat([torch.arange(n) for n in lengths])
    last = torch.cat([torch.arange(n) == n - 1 for n in lengths])
    state = torch.stack([episode, step], 1).float()
    following = torch.where(last[:, None], torch.nan, state + torch.tensor([0.0, 1.0]))
    return Transitions.logged(
        state=state,
        action=(step % 3)[:, None] / 10,
        reward=step.float(),
        next_state=following,
        terminated=last,
        truncated=torch.zeros_like(last),
        subject=episode,
        step=step,
        actions=Discrete.of([0, 0.1, 0.2]),
    )


def imagine(real: Transitions, width: int) -> Transitions:
    count = len(real)
    marks = {"imagined": torch.ones(count, dtype=torch.bool), "source": torch.arange(count)}
    return replace(real, **marks, noise=torch.ones(count, width))


def test_logged_fills_in_what_is_known() -> None:
    rows = table()
    assert rows.action_index.tolist() == (rows.step % 3).tolist()
    assert torch.equal(rows.episode, rows.subject)
    assert rows.subject_names == ("0", "1", "2")
    assert rows.state_names == ("state_0", "state_1")
    assert rows.action_names == ("action_0",)
    assert not rows.imagined.any()
    assert (rows.source == -1).all()
    assert rows.noise.shape == (11, 0)


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_a_wrong_flag_is_refused_by_its_own_name(name: str) -> None:
    rows = table()
    config.update("jaxtyping_disable", True)  # As outside the tests; the next test sets it again.
    given = {field: getattr(rows, field) for field in ("state", "action", "reward", "next_state", "subject", "step")}
    flags = {"terminated": rows.terminated, "truncated": rows.truncated, name: rows.terminated.float()}
    with pytest.raises(CounterpointError, match=f"'{name}' of the rows is not a tensor of true and false"):
        Transitions.logged(**given, **flags, actions=rows.actions)


def test_rows_are_picked_in_every_column() -> None:
    rows = table()
    mask = rows.step == 1
    for picked in (rows[mask], rows[mask.nonzero()[:, 0]]):
        assert len(picked) == 3
        for name in COLUMNS:
            assert torch.equal(getattr(picked, name).nan_to_num(-9), getattr(rows, name)[mask].nan_to_num(-9)), name
    assert rows[2:4].state.tolist() == [[0, 2], [0, 3]]


def test_a_row_without_next_state_is_not_shown_to_dynamics() -> None:
    rows = table()
    assert rows.has_next.tolist() == (~rows.terminated).tolist()
    shown = rows.with_next()
    assert len(shown) == 8
    assert not shown.next_state.isnan().any()
    assert shown.with_next() is shown
    half = replace(rows, next_state=rows.next_state.clone().index_fill_(0, torch.tensor([0]), 1.0))
    half.next_state[0, 1] = torch.nan
    assert not half.has_next[0], "half a next state is none"


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6])
def test_windows_are_every_run_of_one_episode(length: int) -> None:
    rows = table()
    windows = rows.windows(length)
    expected = [
        list(range(s, s + length))
        for first, n in ((0, 4), (4, 2), (6, 5))
        for s in range(first, first + n - length + 1)
    ]
    assert windows.rows.tolist() == expected
    assert windows.state.shape == (len(expected), length, 2)
    assert torch.equal(windows.action, rows.action[windows.rows])
    assert torch.equal(windows.subject, windows.state[:, 0, 0].long())


def test_windows_do_not_depend_on_row_order_and_skip_gaps_and_imagined_rows() -> None:
    rows = table()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    assert torch.equal(rows[order].windows(3).state, rows.windows(3).state)
    gap = rows[rows.step != 2].windows(2)
    assert gap.state[:, :, 1].tolist() == [[0, 1], [0, 1], [0, 1], [3, 4]]
    assert torch.equal(concatenate([rows, imagine(rows, 2)]).windows(3).rows, rows.windows(3).rows)


def test_windows_part_the_episodes_of_one_subject() -> None:
    rows = replace(table(), subject=torch.zeros(11, dtype=torch.long), step=torch.arange(11))
    assert len(rows.windows(2).rows) == 3 + 1 + 4


def test_windows_part_the_subjects_of_one_episode_number() -> None:
    rows = replace(table(), episode=torch.zeros(11, dtype=torch.long), step=torch.arange(11))
    assert len(rows.windows(2).rows) == 3 + 1 + 4


def test_concatenate_keeps_rows_and_pads_noise() -> None:
    rows = table()
    both = concatenate([rows, imagine(rows, 2)])
    assert len(both) == 22
    assert both.noise.shape == (22, 2)
    assert (both.noise[:11] == 0).all()
    assert (both.noise[11:] == 1).all()
    assert both.real.fingerprint == concatenate([rows, imagine(rows, 2)[:0]]).fingerprint
    assert both.source[11:].tolist() == list(range(11))


def test_concatenate_keeps_the_names_of_all_subjects() -> None:
    few, many = table((4, 2)), table((4, 2, 5))
    for tables in ([few, many], [many, few]):
        assert concatenate(tables).subject_names == ("0", "1", "2")


def meaning(
    states: tuple[str, ...] = ("state_0", "state_1"),
    actions: Discrete = Discrete.of([0, 0.1, 0.2]),
    action_names: tuple[str, ...] = ("dose",),
) -> dict[str, Schema]:
    return {"schema": Schema.of(states, actions, action_names)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            meaning(("state_1", "state_0")),
            "^the state columns of the table 0 .* those of the table 2 in another order;",
        ),
        (meaning(("state_0", "state_2")), "^the state columns of the table 0 .* of the table 2 state_0, state_2;"),
        (meaning(action_names=("volume",)), "^the action columns of the table 0 are dose and those of the table 2 vol"),
        (meaning(actions=Discrete.of([0, 0.1, 0.2, 0.3])), "^the actions of the table 0 .* of the table 2 {.*0.3};"),
        ({"outcome_names": ("died",)}, "^tables 0 and 2 differ in outcome_names;"),
        ({"subject_names": ("0", "ann", "2")}, "^table 2 numbers other subjects"),
        ({"subject_names": ("0", "ann")}, "^table 2 numbers other subjects"),
        ({"subject_names": ("0", "1", "ann", "3")}, "^table [01] numbers other subjects"),
    ],
)
def test_concatenate_does_not_take_one_thing_for_another(changes: dict[str, Any], words: str) -> None:
    rows = replace(table(), **meaning())
    with pytest.raises(CounterpointError, match=words) as caught:
        concatenate([rows, rows, replace(rows, **changes)])
    assert "\n" not in str(caught.value)
    assert "ann" not in str(caught.value)


def test_tables_compare_as_things_and_not_by_their_tensors() -> None:
    rows = table()
    assert rows == rows
    assert rows != table()
    assert len({rows, rows, table()}) == 2


def test_fingerprint_sees_every_column_the_space_and_nothing_else() -> None:
    rows = table()
    assert rows.fingerprint == table().fingerprint
    for name in COLUMNS:
        column = getattr(rows, name)
        changed = (
            torch.zeros(len(rows), 1) if name == "noise" else (~column if column.dtype == torch.bool else column + 1)
        )
        assert replace(rows, **{name: changed}).fingerprint != rows.fingerprint, name
    for changes in (
        meaning(actions=Discrete.of([0, 0.1, 0.3])),
        meaning(("state_0", "s")),
        meaning(action_names=("d",)),
    ):
        assert replace(rows, **changes).fingerprint != rows.fingerprint
    assert replace(rows, outcome_names=("died",)).fingerprint != rows.fingerprint
    assert replace(rows, subject_names=("a", "b", "c")).fingerprint == rows.fingerprint, "who they are is no number"


def test_an_end_is_an_outcome() -> None:
    rows = table()
    assert rows.outcome_names == ("terminated",)
    assert torch.equal(rows.outcome, torch.where(rows.terminated, 0, -1))
    assert torch.equal(first_outcome(rows.terminated), rows.outcome)
    other = replace(rows, outcome=torch.where(rows.episode == 1, 1, rows.outcome), outcome_names=("died", "left"))
    assert other.terminated.tolist() == ((rows.episode == 1) | rows.terminated).tolist()


def test_a_split_is_by_subject_and_depends_on_the_seed_alone() -> None:
    rows = table(tuple(range(1, 21)))
    for share, count in ((0.0, 0), (0.2, 4), (0.33, 7), (0.99, 19)):
        kept, aside = rows.split(share, seed=3)
        assert len(aside.subject.unique()) == count
        assert len(kept) + len(aside) == len(rows)
        assert not set(kept.subject.tolist()) & set(aside.subject.tolist())
    assert rows.split(0.2, 3)[1].fingerprint == rows.split(0.2, 3)[1].fingerprint
    assert rows.split(0.2, 4)[1].fingerprint != rows.split(0.2, 3)[1].fingerprint
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(CounterpointError, match=r"is not a (share|finite number); give"):
            rows.split(share)


def test_row_hashes_tell_state_action_and_next_state_apart_and_nothing_else() -> None:
    rows = table()
    hashes = rows.row_hashes
    assert len(hashes.unique()) == len(rows)
    assert torch.equal(rows[4:].row_hashes, hashes[4:]), "a row's hash does not depend on the rows beside it"
    for name in ("state", "action", "next_state"):
        changed = replace(rows, **{name: getattr(rows, name).nan_to_num() + 1e-3})
        assert not torch.isin(changed.row_hashes, hashes).any(), name
    for name in ("reward", "subject", "episode", "step"):
        assert torch.equal(replace(rows, **{name: getattr(rows, name) + 1}).row_hashes, hashes), name
    swapped = replace(rows, state=rows.state.flip(1))[rows.state[:, 0] != rows.state[:, 1]]
    assert not torch.isin(swapped.row_hashes, hashes).all(), "columns are not interchangeable"


def test_discrete_features_and_index_are_inverse() -> None:
    for space in (Discrete.of([0, 0.1, 0.7]), Discrete.one_hot(25), Discrete(((0.0, 1.0), (1.0, 0.0), (1.0, 1.0)))):
        assert space.index(space.features(torch.arange(space.count))).tolist() == list(range(space.count))
        assert space.table().shape == (space.count, space.width)
    assert Discrete.of([-1, 2]).low == (-1,)
    assert Discrete.of([-1, 2]).high == (2,)
    assert Discrete.one_hot(3).index(torch.eye(3).double()).tolist() == [0, 1, 2]


def test_discrete_index_knows_what_it_does_not_know() -> None:
    space = Discrete(((0.0, 1.0), (1.0, 0.0)))
    strange = torch.tensor(
        [[0.0, 1.0 + 5e-6], [0.0, 1.001], [torch.nan, 1.0], [0.0, torch.nan], [torch.nan, torch.nan]]
    )
    assert space.index(strange).tolist() == [0, -1, -1, -1, -1]
    assert space.contains(strange).tolist() == [True, False, False, False, False]
    assert space.index(torch.zeros(0, 2)).shape == (0,)


def test_box_holds_its_edges_and_no_more() -> None:
    space = Box((0.0, -1.0), (1.0, 1.0))
    rows = torch.tensor([[0.0, -1.0], [1.0, 1.0], [0.5, 1.1], [-0.1, 0.0], [torch.nan, 0.0]])
    assert space.contains(rows).tolist() == [True, True, False, False, False]
    assert (space.index(rows) == -1).all()


def test_samples_lie_in_the_space_and_reach_all_of_it() -> None:
    generator = torch.Generator().manual_seed(0)
    discrete, box = Discrete.of([0, 0.1, 0.2]), Box((0.0, -3.0), (1.0, 5.0))
    assert discrete.index(discrete.sample(200, generator)).bincount().min() > 40
    drawn = box.sample(2000, generator)
    assert box.contains(drawn).all()
    assert torch.allclose(drawn.mean(0), torch.tensor([0.5, 1.0]), atol=0.2)
    assert torch.allclose(drawn.amax(0), torch.tensor([1.0, 5.0]), atol=0.05)


def test_check_actions_names_the_first_row_outside() -> None:
    check_actions(Box((0.0,), (1.0,)), torch.tensor([[0.0], [1.0]]))
    with pytest.raises(CounterpointError, match=r"at row 1 is outside the action space \{0.0, 1.0\} \(2 such rows\)"):
        check_actions(Discrete.of([0, 1]), torch.tensor([[1.0], [0.5], [2.0]]))
    with pytest.raises(CounterpointError, match="has 2 columns but the action space has 1"):
        check_actions(Discrete.of([0, 1]), torch.zeros(3, 2))
