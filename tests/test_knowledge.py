"""What the user declares of the state: rows that are not so are refused, and every imagined row is so."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import counterpoint as cp
from counterpoint.data.jobs import Job, fitting_table
from counterpoint.data.spaces import constant
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout
from helpers.recipes import BRIEF, Pays
from helpers.tables import ward

NAMES = ("x", "n", "c", "s")
KNOWN = cp.Knowledge(bounds=(("x", -1.0, 2.0),), whole=("n",), circles=(("c", "s"),))


def test_the_nearest_state_that_is_as_declared() -> None:
    state = torch.tensor([[3.0, 1.6, 3.0, 4.0], [-5.0, -0.4, 0.0, -2.0], [0.5, 2.0, 0.6, 0.8]])
    expected = torch.tensor([[2.0, 2.0, 0.6, 0.8], [-1.0, 0.0, 0.0, -1.0], [0.5, 2.0, 0.6, 0.8]])
    torch.testing.assert_close(KNOWN.hold(state, NAMES), expected)
    assert cp.Knowledge().hold(state, NAMES) is state


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, 2.5, r"column 'x' is not as declared \(from -1 to 2\) in 1 rows; correct"),
        (1, 1.5, r"column 'n' is not as declared \(whole numbers\)"),
        (2, 0.1, r"column 'c' is not as declared \(on a circle with 'c and s'\)"),
    ],
)
def test_rows_that_are_not_as_declared_are_refused(place: int, value: float, said: str) -> None:
    state = torch.tensor([[0.5, 2.0, 0.6, 0.8], [torch.nan] * 4])
    KNOWN.check(state, NAMES)
    state[0, place] = value
    with pytest.raises(cp.CounterpointError, match=said):
        KNOWN.check(state, NAMES)


def test_declarations_name_columns_that_are_there() -> None:
    with pytest.raises(cp.CounterpointError, match="'z' is declared and is not a state column"):
        cp.Schema.of(["x"], cp.Discrete.of([0, 1]), knowledge=cp.Knowledge(whole=("z",)))
    with pytest.raises(cp.CounterpointError, match="mirror names 'z'"):
        cp.Schema.of(["x"], cp.Discrete.of([0, 1]), knowledge=cp.Knowledge(mirror=("x", "z")))
    with pytest.raises(cp.CounterpointError, match="give the lower one first"):
        cp.Knowledge(bounds=(("x", 1.0, 1.0),))


def test_declarations_are_about_numbers_and_mirrors_about_actions_that_there_are() -> None:
    treatments, doses = cp.Discrete.one_hot(3), cp.Discrete.of([0, 1, 4])
    for actions in (treatments, doses):
        with pytest.raises(cp.CounterpointError, match="some actions are none"):
            cp.Schema.of(["x"], actions, knowledge=cp.Knowledge(mirror=("x", "action_0")))
    cp.Schema.of(["x"], cp.Discrete.of([0, 2, 4]), knowledge=cp.Knowledge(mirror=("x", "action_0")))
    sex = (cp.Column("sex", levels=("f", "m")),)
    for known in (cp.Knowledge(whole=("sex",)), cp.Knowledge(mirror=("sex",))):
        with pytest.raises(cp.CounterpointError, match="'sex' is a category"):
            cp.Schema(sex, doses, ("dose",), knowledge=known)
    with pytest.raises(cp.CounterpointError, match="'dose' is declared and is not a state column"):
        cp.Schema.of(["x"], doses, ["dose"], knowledge=cp.Knowledge(bounds=(("dose", 0.0, 1.0),), mirror=("dose",)))


def test_a_table_carries_its_declarations(tmp_path: Path) -> None:
    told = {"subject": "id", "time": "hour", "state": ["lactate", "age"], "action": "dose", "reward": "r"}
    told |= {"done": "died", "last": "truncate"}
    known = cp.Knowledge(bounds=(("age", 0.0, 120.0),))
    rows = cp.from_dataframe(ward(), **told, actions=cp.Bins(), knowledge=known)  # pyright: ignore[reportArgumentType]
    cp.write(rows, tmp_path / "rows.parquet")
    assert cp.read(tmp_path / "rows.parquet").schema.knowledge == known
    young = cp.Knowledge(bounds=(("age", 0.0, 20.0),))
    with pytest.raises(cp.CounterpointError, match="column 'age' is not as declared"):
        cp.from_dataframe(ward(), **told, actions=cp.Bins(), knowledge=young)  # pyright: ignore[reportArgumentType]


def turning(rows: int = 160) -> cp.Transitions:
    """An angle that turns by the action and noise, as cosine and sine, and a count of steps."""
    random = torch.Generator().manual_seed(0)
    angle = torch.zeros(rows + 1)
    actions = torch.randint(2, (rows, 1), generator=random).float()
    for t in range(rows):
        angle[t + 1] = angle[t] + 0.5 * (2 * actions[t, 0] - 1) + 0.1 * torch.randn((), generator=random)
    count = torch.randint(10, (rows + 1,), generator=random).float()
    states = torch.stack([angle.cos(), angle.sin(), count], 1)
    known = cp.Knowledge(bounds=(("n", 0.0, 9.0),), whole=("n",), circles=(("c", "s"),))
    flags = torch.zeros(rows, dtype=torch.bool)
    return cp.Transitions.logged(
        state=states[:-1], action=actions, reward=torch.zeros(rows), next_state=states[1:], terminated=flags,
        truncated=flags, subject=torch.arange(rows) // 20, step=torch.arange(rows) % 20,
        schema=cp.Schema.of(["c", "s", "n"], cp.Discrete.of([0, 1]), knowledge=known),
    )  # fmt: skip


BRIEF_MODELS = [
    cp.DensitySCM(ensemble=2, hidden=(8,), likelihood=BRIEF),
    cp.models.GaussianDynamics(2, (8,), likelihood=BRIEF),
]


@pytest.mark.parametrize("recipe", BRIEF_MODELS)
def test_every_imagined_row_is_as_declared(recipe: cp.DensitySCM) -> None:
    rows = turning()
    model = recipe.fit(rows)
    random = torch.Generator().manual_seed(1)
    state, action = rows.state, 1 - rows.action
    answers = [model.sample(state, action, random), model.imagine(rows, action[:, None], random)[:, 0]]
    simulator = ModelSimulator([model])
    rollout = Rollout(simulator, Pays(rows.actions), lambda s, t: torch.ones_like(s[..., :1]))
    answers += [step.next_state[0] for step in rollout(state[None, :20], simulator.fresh(20, 0), 5)]
    for answer in answers:
        torch.testing.assert_close(answer[:, :2].norm(dim=1), torch.ones(len(answer)))
        assert torch.equal(answer[:, 2], answer[:, 2].round())
        assert 0 <= answer[:, 2].min() <= answer[:, 2].max() <= 9
    bare = replace(rows, schema=replace(rows.schema, knowledge=cp.Knowledge()))
    free = recipe.fit(bare).sample(state, action, random)
    assert (free[:, :2].norm(dim=1) - 1).abs().max() > 0.05


LAGGED = cp.Knowledge(carried=(("d1", "dose"), ("d2", "d1"), ("before", "x")))


def dosed() -> cp.Transitions:
    """Two episodes of a subject, with a gap in the second."""
    random = torch.Generator().manual_seed(0)
    step = torch.tensor([0, 1, 2, 3, 0, 1, 3, 4])
    state, dose, after = (torch.rand(8, 1, generator=random) for _ in range(3))
    flags = torch.zeros(8, dtype=torch.bool)
    return cp.Transitions.logged(
        state=state, action=dose, reward=torch.zeros(8), next_state=after, terminated=flags, truncated=flags,
        subject=torch.zeros(8, dtype=torch.long), episode=torch.arange(8) // 4, step=step,
        schema=cp.Schema.of(["x"], cp.Box((0.0,), (1.0,)), ["dose"]),
    )  # fmt: skip


def test_carried_columns_hold_what_their_sources_were() -> None:
    """All at once: what one column hands on is what it held before."""
    schema = cp.Schema.of(["d2", "x", "d1", "before"], cp.Box((0.0,), (1.0,)), ["dose"], knowledge=LAGGED)
    state, action = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.5]])
    after = torch.tensor([[9.0, 7.0, 9.0, 9.0]])
    assert schema.held(after, state, action).tolist() == [[3.0, 7.0, 0.5, 2.0]]
    assert after.tolist() == [[9.0, 7.0, 9.0, 9.0]]
    assert schema.unpredicted == (0, 2, 3)
    wide = schema.held(after.expand(2, 3, -1), state.expand(2, 3, -1), action.expand(2, 3, -1))
    assert torch.equal(wide, torch.tensor([3.0, 7.0, 0.5, 2.0]).expand(2, 3, 4))
    bounded = replace(schema, knowledge=replace(LAGGED, bounds=(("d1", 0.0, 0.4),)))
    assert bounded.held(after, state, action).tolist() == [[3.0, 7.0, pytest.approx(0.4), 2.0]]


def test_a_column_is_static_or_carried_or_foretold() -> None:
    columns = (cp.Column("age", static=True), cp.Column("x"), cp.Column("d1"))
    schema = cp.Schema(columns, cp.Box((0.0,), (1.0,)), ("dose",), knowledge=cp.Knowledge(carried=(("d1", "dose"),)))
    assert schema.unpredicted == (0, 2)
    assert schema.static == (0,)


@pytest.mark.parametrize(
    ("carried", "said"),
    [
        ((("z", "dose"),), "'z' is declared as carried and is not a state column"),
        ((("y", "z"),), "'y' is carried from 'z', which is not a column"),
        ((("y", "x"),), "'y' is carried from 'x', a state and an action column"),
        ((("y", "dose"), ("y", "y")), "'y' is carried from two columns"),
    ],
)
def test_columns_are_carried_from_one_column_that_is_there(carried: tuple[tuple[str, str], ...], said: str) -> None:
    box = cp.Box((0.0, 0.0), (1.0, 1.0))
    with pytest.raises(cp.CounterpointError, match=said):
        cp.Schema.of(["x", "y"], box, ["dose", "x"], knowledge=cp.Knowledge(carried=carried))


def test_lags_are_carried_from_step_to_step() -> None:
    rows = cp.data.with_lags(dosed(), 2)
    assert rows.state_names == ("x", "dose_1_ago", "dose_2_ago")
    assert rows.schema.knowledge.carried == (("dose_1_ago", "dose"), ("dose_2_ago", "dose_1_ago"))
    dose, none = dosed().action[:, 0], torch.zeros(())
    one = [none, dose[0], dose[1], dose[2], none, dose[4], none, dose[6]]
    two = [none, none, dose[0], dose[1], none, none, dose[5], none]
    assert torch.equal(rows.state[:, 1:], torch.stack([torch.stack(one), torch.stack(two)], 1))
    held = rows.schema.held(torch.full_like(rows.state, 9.0), rows.state, rows.action)
    assert torch.equal(held[:, 1:], rows.next_state[:, 1:])
    rows.schema.check_rows(rows.state, rows.action, rows.next_state)
    shuffle = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(cp.data.with_lags(dosed()[shuffle], 2).state, rows.state[shuffle])


def test_lags_of_what_was_imagined_or_lagged_before_are_refused() -> None:
    rows = dosed()
    with pytest.raises(cp.CounterpointError, match="lags are of logged rows"):
        cp.data.with_lags(replace(rows, imagined=torch.ones(8, dtype=torch.bool)), 1)
    with pytest.raises(cp.CounterpointError, match="named 'dose_1_ago'"):
        cp.data.with_lags(cp.data.with_lags(rows, 1), 1)
    twin = replace(rows, schema=cp.Schema.of(["dose"], rows.actions, ["dose"]))
    with pytest.raises(cp.CounterpointError, match="a state and an action column; rename one"):
        cp.data.with_lags(twin, 1)


def test_a_table_whose_carried_columns_are_not_so_is_refused() -> None:
    table = ward().sort_values(["id", "hour"])
    table["last"] = table.groupby("id")["lactate"].shift(1, fill_value=0.0)
    told = {"subject": "id", "time": "hour", "state": ["lactate", "last"], "action": "dose", "reward": "r"}
    told |= {"done": "died", "last": "truncate", "actions": cp.Bins()}
    known = cp.Knowledge(carried=(("last", "lactate"),))
    rows = cp.from_dataframe(table, **told, knowledge=known)  # pyright: ignore[reportArgumentType]
    assert rows.schema.unpredicted == (1,)
    wrong = cp.Knowledge(carried=(("lactate", "last"),))
    with pytest.raises(cp.CounterpointError, match="column 'lactate' is not what 'last' was one step before in"):
        cp.from_dataframe(table, **told, knowledge=wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("recipe", BRIEF_MODELS)
def test_no_model_foretells_what_is_carried(recipe: cp.DensitySCM) -> None:
    rows = cp.data.with_lags(turning(), 1)
    model = recipe.fit(rows)
    other = 1 - rows.action
    simulator = ModelSimulator([model])
    luck = simulator.fresh(len(rows), 0)(0)
    random = torch.Generator().manual_seed(1)
    answers = [
        model.sample(rows.state, other, random),
        model.imagine(rows, other[:, None], random)[:, 0],
        simulator.step(rows.state[None], other[None], luck, torch.zeros(1, len(rows), 0))[0],
    ]
    for answer in answers:
        assert torch.equal(answer[:, 3:], other)


def test_constants_are_kept_apart_by_their_kind() -> None:
    """(0, 1), (0.0, 1.0) and (False, True) are equal, and not the same tensor."""
    cpu = torch.device("cpu")
    kinds = [constant(values, cpu).dtype for values in ((0, 1), (0.0, 1.0), (False, True), (0, 1))]
    assert kinds == [torch.int64, torch.float32, torch.bool, torch.int64]
    assert constant((0.0, 1.0), cpu) is constant((0.0, 1.0), cpu)
    assert cp.Discrete(((3,), (4,))).table().dtype == cp.Discrete.of([3, 4]).table().dtype == torch.float32


def test_a_mirror_shows_a_fit_every_row_twice() -> None:
    task = cp.CartPole(mirror_declared=True)
    rows = cp.simulate(task, cp.random_policy(task), 3, 20, seed=0)
    table, plain = fitting_table(Job(rows)), fitting_table(Job(replace(rows, schema=cp.CartPole().schema)))
    n = len(rows)
    assert len(plain["context"]) == n
    for name in plain:
        assert torch.equal(table[name][:n], plain[name])
    assert torch.equal(table["subject"][n:], plain["subject"])
    torch.testing.assert_close(table["context"][n:, :4], -rows.state)
    torch.testing.assert_close(table["next_state"][n:], -rows.next_state)
    torch.testing.assert_close(table["context"][n:, 4:], 1 - rows.action)
    physics = task.transition(table["state"][n:], table["context"][n:, 4:], torch.zeros(n, 5))
    torch.testing.assert_close(physics, -task.transition(rows.state, rows.action, torch.zeros(n, 5)))


def test_no_lag_reaches_into_the_episode_before():
    """Steps count on through a trial whose pole falls; the row after the fall opens an episode and has no past."""
    task = cp.CartPole(gravity=24.79)
    rows = cp.simulate(task, cp.random_policy(task), trials=20, steps=20, seed=0)
    opens = torch.ones(len(rows), dtype=torch.bool)
    opens[1:] = rows.episode[1:] != rows.episode[:-1]
    assert int((opens & (rows.step > 0)).sum()) > 5, "some trials hold several episodes"
    past = cp.data.with_lags(rows, 2).state[:, rows.state_size :]
    assert bool((past[opens] == 0).all())
    later = ~opens
    assert torch.equal(past[later][:, 0], rows.action[:-1][later[1:], 0])
