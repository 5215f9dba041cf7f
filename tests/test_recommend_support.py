"""Which actions have support and what may not be recommended, by hand-made logs and a policy with one wish."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.checks.support import (
    SimilarRows,
    Threshold,
    near_doses,
)
from counterpoint.core.wording import counted
from counterpoint.data.doses import ActionColumn
from counterpoint.data.schema import Column, Schema
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.policies.base import Policy
from counterpoint.policies.q import QPolicy
from counterpoint.policies.recommendation import WITHHELD, Advice, PersonalAdvice, recommend

SHAPES = False
DOSES = Discrete.of([0.0, 1.0, 2.0])
X = (Column("x"),)


class Always(Policy):
    """The same action for everybody."""

    def __init__(self, schema: Schema, action: float) -> None:
        super().__init__()
        self.schema, self.action, self.recipe, self.origin = schema, action, None, None

    def act(self, state: Any, theta: Any = None) -> Any:
        return torch.full((len(state), 1), self.action)

    def actor(self) -> Any:
        raise NotImplementedError

    def rollout_actor(self, others: Any = ()) -> Any:
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        return {}


def log(actions: Tensor, space: Any = DOSES, states: tuple[Column, ...] = X, reward: float = -1.0) -> Transitions:
    """A row a subject, all in nearly the same state, each of which ends."""
    count = len(actions)
    state = torch.linspace(0, 1, count)[:, None].expand(-1, len(states)).clone()
    for place, column in enumerate(states):
        if column.levels:
            state[:, place] = 0.0
    return Transitions.logged(
        state=state, action=actions[:, None].float(), reward=torch.full((count,), reward),
        next_state=torch.full_like(state, torch.nan), terminated=torch.ones(count, dtype=torch.bool),
        truncated=torch.zeros(count, dtype=torch.bool), subject=torch.arange(count), step=torch.zeros(count).long(),
        schema=Schema(states, space, ("dose",)),
    )  # fmt: skip


def given(large: int, of: int = 250) -> Transitions:
    """All were given nothing, but for the first few of the 250 rows; the similar rows of x = 0 are the first 50."""
    actions = torch.zeros(of)
    actions[:large] = 2.0
    return log(actions)


@pytest.mark.parametrize(("large", "recommended"), [(1, False), (2, False), (3, True)])
def test_fewer_than_three_of_fifty_neighbours_are_no_support(large: int, recommended: bool) -> None:
    rows = given(large)
    (advice,) = recommend(Always(rows.schema, 2.0), [[0.0]], rows).advice
    assert advice.supports["2"] == large / 50
    assert (advice.action is not None) == recommended
    if not recommended:
        assert advice.label == WITHHELD
        assert f"{large / 50:.0%} of similar rows" in advice.why


def test_five_percent_are_needed_of_more_neighbours() -> None:
    """3 of 100 are 3%; 5 of 100 are enough."""
    threshold = Threshold()
    assert threshold.met(torch.tensor([2, 3, 4, 5]), 100).tolist() == [False, False, False, True]
    assert threshold.met(torch.tensor([2, 3]), 8).tolist() == [False, True], "of eight rows three are needed"


def test_the_readme_states_the_default_threshold() -> None:
    words = {3: "fewer than three of the nearest logged rows", 0.05: "under a twentieth of them"}
    text = (Path(__file__).parents[1] / "README.md").read_text()
    assert f"({words[Threshold().rows]}, or {words[Threshold().share]}) is withheld" in text.replace("\n", " ")


def test_a_stated_threshold_replaces_it_and_is_said() -> None:
    rows = given(1)
    found = recommend(Always(rows.schema, 2.0), [[0.0]], rows, min_support=0.02)
    assert found.advice[0].label == "2"
    assert "0.02 of the similar logged rows" in found.notes[0]
    assert recommend(Always(rows.schema, 2.0), [[0.0]], rows, min_support=0.03).advice[0].action is None
    with pytest.raises(cp.CounterpointError, match="min_support"):
        recommend(Always(rows.schema, 2.0), [[0.0]], rows, min_support=2.0)


def test_a_dose_near_one_neighbour_alone_is_withheld() -> None:
    """Sixty times the median dose was given once."""
    actions = torch.linspace(0.3, 0.5, 250)
    actions[0] = 25.0
    rows = log(actions, Box((0.0,), (25.0,)))
    (advice,) = recommend(Always(rows.schema, 24.6), [[0.0]], rows).advice
    assert (advice.action, advice.label) == (None, WITHHELD)
    (usual,) = recommend(Always(rows.schema, 0.33), [[0.0]], rows).advice
    assert usual.action == {"dose": pytest.approx(0.33)}
    assert usual.support == round(usual.support, 3), "no digits of single precision"


def test_one_large_dose_does_not_make_all_doses_near() -> None:
    """A tenth of 25 would make 2 the same as 0.4."""
    actions = torch.linspace(0.3, 0.5, 250)
    actions[0] = 25.0
    rows = log(actions, Box((0.0,), (25.0,)))
    share, _ = near_doses(SimilarRows(rows), torch.zeros(1, 1), torch.tensor([[2.0]]))
    assert share.item() == 0.0


def test_imagined_rows_are_no_support() -> None:
    """The same states once more, imagined with the dose that nobody was given: it stays without support."""
    rows = given(0)
    made = replace(
        rows, action=torch.full_like(rows.action, 2.0), action_index=torch.full_like(rows.action_index, 2),
        imagined=torch.ones(len(rows), dtype=torch.bool), source=torch.arange(len(rows)),
    )  # fmt: skip
    both = concatenate([rows, made])
    taken, _ = SimilarRows(both).taken(torch.zeros(1, 1), 3)
    assert taken.tolist() == [[50, 0, 0]]


def valued(rows: Transitions, values: list[float]) -> QPolicy:
    """A Q-network whose values are these in every state."""
    network = cp.D3QN().build(rows.schema.spread_width, len(values), 1)
    policy = QPolicy(None, network, rows.schema, None)  # pyright: ignore[reportArgumentType]
    told = torch.tensor(values)
    policy.values = lambda state, theta=None: told.expand(len(state), -1)  # type: ignore[method-assign]
    policy.act = lambda state, theta=None: DOSES.features(told.argmax().expand(len(state)))  # type: ignore[method-assign]
    return policy


def test_values_outside_the_possible_returns_are_clipped_and_said() -> None:
    """Every reward is −1 at the end of one step: no return but −1 is possible."""
    rows = log(torch.arange(250) % 3.0)
    found = recommend(valued(rows, [74.0, 31_400.0, -303.0]), [[0.0], [0.5]], rows)
    assert [each.label for each in found.advice] == ["1", "1"], "the choice is the policy's"
    assert set(found.advice[0].values.values()) == {-1.0}
    assert found.advice[0].value == -1.0
    assert "values of 2 of 2 subjects" in found.notes[0]
    assert "-1 to -1" in found.notes[0]


def test_a_declared_range_is_used() -> None:
    rows = log(torch.arange(250) % 3.0)
    known = replace(rows.schema.knowledge, reward_range=(-5.0, 0.0))
    rows = replace(rows, schema=replace(rows.schema, knowledge=known))
    found = recommend(valued(rows, [74.0, -2.0, -303.0]), [[0.0]], rows)
    assert list(found.advice[0].values.values()) == [0.0, -2.0, -5.0]
    assert "declared" in found.notes[0]


def test_a_word_for_a_missing_treatment_is_never_recommended() -> None:
    rows = log(torch.arange(250) % 3.0)
    drug = ActionColumn("dose", labels=("none", "?", "iron"), ordered=True)
    rows = replace(rows, schema=replace(rows.schema, doses=(drug,)))
    policy = valued(rows, [-0.5, -0.1, -0.9])
    (advice,) = recommend(policy, [[0.0]], rows).advice
    assert advice.label == "none"
    assert "'?' is no treatment" in advice.why


def test_a_treatment_called_none_is_not_what_is_withheld() -> None:
    advice = Advice("p", None, WITHHELD, None, 0.0, {}, {"none": 0.5}, "")
    own = PersonalAdvice(cp.policies.Verdict(), advice, {}, None, ())  # pyright: ignore[reportArgumentType]
    assert [row["recommended"] for row in own.rows()] == [False]


def test_a_level_that_no_training_subject_had_gets_no_recommendation() -> None:
    """The schema knows the level; the log has nobody with it."""
    rows = log(torch.arange(250) % 3.0, states=(*X, Column("ward", ("a", "b"))))
    known, unknown = recommend(Always(rows.schema, 1.0), [[0.5, 0.0], [0.5, 1.0]], rows).advice
    assert known.label == "1"
    assert unknown.label == WITHHELD
    assert unknown.why == "no training subject had the value of ward"


def test_a_number_outside_the_training_range_is_named() -> None:
    rows = log(torch.arange(250) % 3.0)
    inside, outside = recommend(Always(rows.schema, 1.0), [[0.5], [1.001]], rows).advice
    assert inside.why == ""
    assert "x outside the training subjects' range" in outside.why


def test_one_subject_is_singular() -> None:
    assert (counted(1, "subject"), counted(2, "subject")) == ("1 subject", "2 subjects")
