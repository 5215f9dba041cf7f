"""A policy in logged rows: how likely it takes each action, as far as it could have known the subject by then."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Job
from counterpoint.data.schema import Schema
from counterpoint.ope.problem import (
    DRAWS,
    EpsilonMixture,
    StochasticPolicy,
    target,
)
from counterpoint.policies.personal import PersonalPolicy
from helpers.effects import BRIEF
from helpers.personal import GROUPED, ROWS, SEARCH, TASK

SHAPES = False
WARD = cp.Ward()
LOGGED = cp.simulate(WARD, cp.random_policy(WARD), trials=40, steps=5, seed=0)


@dataclass(frozen=True)
class Careful:
    """The first dose, and the others the less the iller the patient."""

    schema: Schema = LOGGED.schema
    total: float = 1.0

    def probabilities(self, state: Tensor) -> Tensor:
        first = self.total * (0.4 + 0.5 * state[:, :1].sigmoid())
        return torch.cat([first, (self.total - first) / 2, (self.total - first) / 2], 1)


@pytest.fixture(scope="module")
def learned() -> cp.Policy:
    return cp.D3QN((8,), cp.Schedule(steps=50)).fit(LOGGED, WARD)


@pytest.fixture(scope="module")
def personal() -> PersonalPolicy:
    return GROUPED.fit(ROWS, TASK)  # pyright: ignore[reportReturnType]


def test_a_policy_that_always_takes_one_action_is_certain_of_it(learned: cp.Policy) -> None:
    found = target(learned, LOGGED)
    assert found.deterministic
    for chances, state in ((found.now, LOGGED.state), (found.after, LOGGED.next_state)):
        there = ~state.isnan().any(1)
        assert bool((~there).any()) == (state is LOGGED.next_state)
        chosen = LOGGED.actions.index(learned.act(state[there]))  # pyright: ignore[reportAttributeAccessIssue]
        assert torch.equal(chances[there], torch.nn.functional.one_hot(chosen, 3).float())
        assert not chances[~there].any()


def test_softening_mixes_in_what_else_could_be_done(learned: cp.Policy) -> None:
    found = target(learned, LOGGED)
    acted = torch.rand(len(LOGGED), 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    uniform = found.mixed(EpsilonMixture(0.3, "uniform"), LOGGED, acted)
    torch.testing.assert_close(uniform.now, 0.7 * found.now + 0.1)
    torch.testing.assert_close(uniform.after, (0.7 * found.after + 0.1) * LOGGED.has_next[:, None])
    towards = found.mixed(EpsilonMixture(0.3), LOGGED, acted)
    torch.testing.assert_close(towards.now, 0.7 * found.now + 0.3 * acted)
    assert found.mixed(EpsilonMixture(0.0), LOGGED, acted) is found
    own = target(Careful(), LOGGED)
    assert own.mixed(EpsilonMixture(0.3), LOGGED, acted) is own, "it has chances of its own"


def test_softened_towards_whoever_logged_the_next_step(learned: cp.Policy) -> None:
    """In the next state it does as whoever acted there: the row that follows in the episode, in any order of rows."""
    order = torch.randperm(len(LOGGED), generator=torch.Generator().manual_seed(1))
    rows, found = LOGGED[order], target(learned, LOGGED[order])
    acted = torch.rand(len(rows), 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    after = found.mixed(EpsilonMixture(0.5), rows, acted).after
    places = {(int(s), int(t)): i for i, (s, t) in enumerate(zip(rows.subject, rows.step, strict=True))}
    for i in range(len(rows)):
        follows = places.get((int(rows.subject[i]), int(rows.step[i]) + 1), i)
        expected = 0.5 * found.after[i] + 0.5 * acted[follows] if rows.has_next[i] else torch.zeros(3)
        torch.testing.assert_close(after[i], expected)


def test_a_policy_with_chances_of_its_own_says_them() -> None:
    found = target(Careful(), LOGGED)
    assert isinstance(Careful(), StochasticPolicy)
    assert not found.deterministic
    torch.testing.assert_close(found.now, Careful().probabilities(LOGGED.state))
    there = LOGGED.has_next
    torch.testing.assert_close(found.after[there], Careful().probabilities(LOGGED.next_state[there]))
    assert not found.after[~there].any()
    with pytest.raises(cp.CounterpointError, match="sum to 1"):
        target(Careful(total=1.5), LOGGED)


def test_a_personal_policy_knows_a_subject_by_the_rows_before(personal: PersonalPolicy) -> None:
    """In every row as if it had adapted to the subject's rows until then; in the next state the row itself counts."""
    found = target(personal, ROWS)
    for i in torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(0))[:60].tolist():
        own = ROWS[(ROWS.subject == ROWS.subject[i]) & (ROWS.step < ROWS.step[i])]
        row = ROWS[i : i + 1]
        before = personal.adapt(own).policy.act(row.state)
        assert int(found.now[i].argmax()) == int(ROWS.actions.index(before)), i
        with_it = ROWS[(ROWS.subject == ROWS.subject[i]) & (ROWS.step <= ROWS.step[i])]
        after = personal.adapt(with_it).policy.act(row.next_state)
        assert int(found.after[i].argmax()) == int(ROWS.actions.index(after)), i
    whole = torch.stack([personal.adapt(ROWS[ROWS.subject == s]).policy.act(x[None])[0]
                         for s, x in zip(ROWS.subject[:80], ROWS.state[:80], strict=True)])  # fmt: skip
    assert (ROWS.actions.index(whole) != found.now[:80].argmax(1)).any(), "else the test could not tell"


def test_a_policy_that_is_told_factors_is_told_those_before(personal: PersonalPolicy) -> None:
    seeing = replace(SEARCH, sees_factor=True).with_models([Job(ROWS)], [personal.model], TASK)[0].selected
    assert seeing.factor_width == 1
    found = target(seeing, ROWS, personal.model)
    theta = personal.model.factors_before(ROWS).mean
    assert torch.equal(found.now.argmax(1), ROWS.actions.index(seeing.act(ROWS.state, theta)))
    last = ROWS.step == 7
    whole = personal.model.subject_factors(ROWS).mean[ROWS.subject]
    expected = ROWS.actions.index(seeing.act(ROWS.next_state, whole))
    assert torch.equal(found.after.argmax(1)[last], expected[last])
    for model in (
        None,
        cp.DensitySCM(ensemble=1, hidden=(4,), likelihood=cp.models.Likelihood(schedule=BRIEF)).fit(ROWS),
    ):
        with pytest.raises(cp.CounterpointError, match="conditioned on every subject's factor"):
            target(seeing, ROWS, model)


def test_a_policy_that_explores_has_chances(personal: PersonalPolicy) -> None:
    recipe, policies = replace(GROUPED, posterior_sampling=True), list(personal.policies)
    exploring = PersonalPolicy(recipe, personal.model, personal.groups, policies, personal.schema, personal.origin)  # pyright: ignore[reportArgumentType]
    found = target(exploring, ROWS)
    assert not found.deterministic
    torch.testing.assert_close(found.now.sum(1), torch.ones(len(ROWS)))
    sure = (found.now * DRAWS).amax(1) == DRAWS
    first, later = ROWS.step == 0, ROWS.step == 7
    assert sure[later].float().mean() > sure[first].float().mean() + 0.2
    assert torch.equal(found.now, target(exploring, ROWS).now)


def test_what_does_not_fit_is_refused_in_one_line(learned: cp.Policy) -> None:
    doses = replace(LOGGED, schema=replace(LOGGED.schema, actions=cp.Box((0.0,), (1.0,))))
    with pytest.raises(cp.CounterpointError, match="state columns of the policy"):
        target(learned, ROWS)
    with pytest.raises(cp.CounterpointError, match="the doses are continuous"):
        target(Careful(schema=doses.schema), doses)
    with pytest.raises(cp.CounterpointError, match="share"):
        EpsilonMixture(1.5)
