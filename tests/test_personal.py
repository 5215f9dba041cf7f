"""Personal policies: what a record says of its subject decides who treats it, at once or from step to step."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import SubjectFactors, SubjectTracker
from counterpoint.models.groups import Groups
from counterpoint.nets.training import Schedule
from counterpoint.ope.model_based import true_returns, value_in_model
from counterpoint.ope.problem import Episodes
from counterpoint.policies.base import joint_actor
from counterpoint.policies.personal import PersonalPolicy
from helpers.effects import by_hand, generator, logged
from helpers.personal import DOSES, GROUPED, MODEL, ROWS, SEARCH, TASK, TwoKinds
from helpers.tables import refused
from reproduction.true_model import TrueModel

SHAPES = False


LONG = Schedule(steps=30, check_every=5)
RULE = cp.policies.OrderedDose(hidden=(8,))
"""A dose that depends on the product of state and factor."""
SEEING = cp.CTRLp(
    replace(SEARCH, sees_factor=True, rule=RULE, optimizer=cp.learners.CrossEntropy(128), schedule=LONG, starts=4),
    groups=None,
)


@pytest.fixture(scope="module")
def grouped() -> PersonalPolicy:
    return GROUPED.fit(ROWS, TASK)  # pyright: ignore[reportReturnType]


@pytest.fixture(scope="module")
def seeing() -> PersonalPolicy:
    return SEEING.fit(ROWS, TASK)  # pyright: ignore[reportReturnType]


def record(response: float, steps: int, seed: int = 1) -> Transitions:
    """One subject under random doses."""
    random = generator(seed)
    dose = DOSES.table()[torch.randint(5, (steps,), generator=random)]
    state, luck = (torch.randn(steps, 1, generator=random) for _ in range(2))
    after = state + response * dose + 0.2 * luck
    return logged(state, dose, after, torch.zeros(steps, dtype=torch.long), schema=ROWS.schema)


def regrouped(policy: PersonalPolicy, groups: Groups | None, sure: float = 0.5) -> PersonalPolicy:
    recipe, policies = replace(GROUPED, min_group_probability=sure), list(policy.policies)
    return PersonalPolicy(recipe, policy.model, groups, policies, policy.schema, policy.origin)  # pyright: ignore[reportArgumentType]


def step(state: Tensor, action: Tensor, after: Tensor, t: int) -> Transitions:
    """One row of one subject."""
    row = logged(state[None], action[None], after[None], torch.zeros(1, dtype=torch.long), schema=ROWS.schema)
    return replace(row, step=torch.full((1,), t))


ABOVE = torch.tensor([[1.0], [0.7]])
"""Where the usual subject needs a negative dose, the contrary one a positive one."""


def test_a_personal_policy_beats_one_for_all(grouped: PersonalPolicy) -> None:
    """It begins knowing nothing and learns about each subject while treating it; a common policy never does."""
    common = SEARCH.with_models([Job(ROWS)], [grouped.model], TASK)[0].selected
    assert grouped.groups is not None
    assert grouped.groups.count == 2
    personal = true_returns([grouped, grouped], TASK, trials=60, seed=1)
    torch.testing.assert_close(personal[0], personal[1])
    for_all = true_returns([common], TASK, trials=60, seed=1)[0]
    assert personal[0].mean() > 0.5 * for_all.mean()  # Returns are negative.
    gain = personal[0] - for_all
    assert gain.mean() > 3 * gain.std() / 60**0.5


def test_in_the_true_model_a_personal_policy_is_worth_what_it_earns(grouped: PersonalPolicy) -> None:
    """Nobody tells it whom it treats there either: told every subject's kind, it would be worth more."""
    exact, episodes = TrueModel(TASK, population=True).fit(ROWS), Episodes.of(ROWS)
    found = value_in_model(episodes, grouped, exact, TASK, rollouts=40)
    truth = float(true_returns([grouped], TASK, trials=2000, seed=1).mean())
    assert found.value == pytest.approx(truth, rel=0.1)


def test_who_is_unknown_has_everybodys_policy_and_who_is_known_its_groups(grouped: PersonalPolicy) -> None:
    known = [grouped.adapt(record(response, 20)) for response in (1.0, -1.0)]
    for adapted, side in zip(known, (-1, 1), strict=True):
        assert adapted.group is not None
        assert adapted.policy is grouped.policies[adapted.group]
        assert adapted.group_probability == float(adapted.chances.max()) > 0.99
        assert (side * adapted.policy.act(ABOVE) > 0).all()
    assert known[0].group != known[1].group
    fresh = record(1.0, 0)
    assert fresh.subject_names == ()
    for nothing in (fresh, ROWS[:0]):
        unknown = grouped.adapt(nothing)
        assert unknown.group is None
        assert unknown.rows == 0
        assert unknown.policy is grouped.policies[-1]
        assert grouped.groups is not None
        torch.testing.assert_close(unknown.chances, grouped.groups.share)
        assert torch.equal(unknown.factor, torch.zeros(1))
        assert torch.equal(unknown.covariance, torch.eye(1))
    assert torch.equal(grouped.act(ABOVE), grouped.policies[-1].act(ABOVE))  # pyright: ignore[reportCallIssue]


def test_who_is_not_known_well_enough_has_everybodys_policy(grouped: PersonalPolicy) -> None:
    """A dose of zero says nothing of what doses do."""
    idle = record(1.0, 5)
    idle = replace(idle, action=torch.zeros(5, 1), action_index=torch.full((5,), 2), next_state=idle.state)
    wary = regrouped(grouped, grouped.groups, sure=0.9)
    found = wary.adapt(idle)
    assert found.rows == 5
    assert found.group_probability < 0.9
    assert found.group is None
    assert found.policy is grouped.policies[-1]


def test_given_factors_choose_the_group_whose_centre_is_nearest(grouped: PersonalPolicy) -> None:
    assert grouped.groups is not None
    centres = grouped.groups.centre
    for group in range(2):
        policy = grouped.policies[group]
        assert torch.equal(grouped.act(ABOVE, centres[group][None] * 1.2), policy.act(ABOVE))  # pyright: ignore[reportCallIssue]
    assert "factors of 1 columns" in refused(lambda: grouped.act(ABOVE, torch.zeros(1, 3)))


def test_a_longer_record_is_its_rows_taken_up_one_by_one(grouped: PersonalPolicy) -> None:
    rows = record(-1.0, 6)
    tracker = grouped.model.tracker()
    for t in range(6):
        now = grouped.adapt(rows[:t])
        expected = tracker.factors(1)
        torch.testing.assert_close(now.factors.mean, expected.mean, rtol=0, atol=1e-4)
        torch.testing.assert_close(now.factors.covariance, expected.covariance, rtol=0, atol=1e-4)
        tracker.update(rows.state[t : t + 1], rows.action[t : t + 1], rows.next_state[t : t + 1])
    imagined = replace(rows, imagined=torch.ones(6, dtype=torch.bool))
    assert grouped.adapt(imagined).group is None


@pytest.mark.parametrize("hard", [False, True])
def test_at_work_every_step_decides_as_adapt_would(grouped: PersonalPolicy, hard: bool) -> None:
    """Two policies, three subjects: before each step the record so far says whose policy acts."""
    assert grouped.groups is not None
    groups = replace(grouped.groups, hard=hard)
    policy = regrouped(grouped, groups)
    actor = joint_actor([policy, policy])
    records = [record(response, 5, seed) for seed, response in enumerate((1.0, -1.0, 0.1))]
    state, seen = torch.stack([rows.state[0] for rows in records]), [rows[:0] for rows in records]
    for t in range(5):
        chosen = actor(state.expand(2, -1, -1), torch.zeros(2, 3, 0))
        for i, rows in enumerate(seen):
            assert torch.equal(chosen[0, i], policy.adapt(rows).policy.act(state[i : i + 1])[0])
        assert torch.equal(chosen[0], chosen[1])
        after = state + torch.tensor([[1.0], [-1.0], [0.1]]) * chosen[0] + 0.1
        rows = [step(*each, t) for each in zip(state, chosen[0], after, strict=True)]
        seen = [cp.data.concatenate([old, new]) for old, new in zip(seen, rows, strict=True)]
        state = after


def test_a_tracker_sees_steps_where_it_wants_them(grouped: PersonalPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tracked on a processor is not on the GPU where the policy acts, and the other way round."""
    seen: list[str] = []

    class Elsewhere(SubjectTracker):
        device, informed = torch.device("meta"), False

        def update(self, state: Tensor, action: Tensor, after: Tensor) -> None:
            seen.extend(table.device.type for table in (state, action, after))

        def factors(self, subjects: int) -> SubjectFactors:
            return SubjectFactors.prior(subjects, 1)

    monkeypatch.setattr(type(grouped.model.mechanism), "tracker", lambda self: Elsewhere())
    actor = grouped.rollout_actor()
    for _ in range(2):
        chosen = actor(torch.ones(1, 3, 1), torch.zeros(1, 3, 0))
        assert chosen.device.type == "cpu"
    assert seen == ["meta"] * 3


def test_where_nothing_is_selected_there_is_one_policy() -> None:
    """A search has one end; evaluating it as two would take twice as long."""
    (learned,) = GROUPED.fit_many([Job(ROWS)], TASK)
    assert learned.selected is learned.last


def test_a_policy_that_sees_factors_acts_by_them(seeing: PersonalPolicy) -> None:
    """Without groups: whoever responds the other way round is given the other dose, and few rows are enough."""
    for response, side in ((1.0, -1), (-1.0, 1)):
        adapted = seeing.adapt(record(response, 20))
        assert adapted.group is None
        assert len(adapted.chances) == 0
        assert (side * adapted.policy.act(ABOVE) > 0).all()
        torch.testing.assert_close(seeing.act(ABOVE, adapted.factor[None]), adapted.policy.act(ABOVE))
    prior = seeing.adapt(record(1.0, 0)).policy
    assert torch.equal(prior.act(ABOVE), seeing.act(ABOVE, torch.zeros(1, 1)))
    assert torch.equal(prior.act(ABOVE), seeing.act(ABOVE))
    found = true_returns([seeing], TASK, trials=60, seed=1)[0]
    common = SEARCH.with_models([Job(ROWS)], [seeing.model], TASK)[0].selected
    assert found.mean() > 0.5 * true_returns([common], TASK, trials=60, seed=1)[0].mean()
    assert "save the personal policy" in refused(prior.weights)


@pytest.mark.parametrize("kind", ["grouped", "seeing"])
def test_a_saved_personal_policy_gives_the_same_answers(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    policy = request.getfixturevalue(kind).with_verdict(cp.policies.Verdict("with care", ("few rows",)))
    policy.save(tmp_path)
    again = cp.load(tmp_path)
    assert again.recipe == policy.recipe
    assert again.verdict == policy.verdict
    for rows in (record(1.0, 9), record(-1.0, 9), record(1.0, 0)):
        one, two = policy.adapt(rows), again.adapt(rows)
        assert torch.equal(one.factor, two.factor)
        assert torch.equal(one.chances, two.chances)
        assert one.group == two.group
        assert torch.equal(one.policy.act(ABOVE), two.policy.act(ABOVE))
    first, second = (true_returns([each], TASK, trials=6, seed=2) for each in (policy, again))
    assert torch.equal(first, second)


def test_tables_of_other_numbers_of_factors_are_learned_and_judged_together() -> None:
    """Kinds that differ, and subjects that are all alike, for whom the group is everybody."""
    alike = replace(ROWS, next_state=ROWS.state + ROWS.action + 0.2 * (ROWS.noise))
    learner = replace(GROUPED, policy=replace(SEARCH, model=replace(MODEL, factors=None, most_factors=1)))
    jobs = [Job(ROWS, 0), Job(alike, 1)]
    policies = [learned.selected for learned in learner.fit_many(jobs, TASK)]
    assert [policy.model.theta_width for policy in policies] == [1, 0]
    assert [policy.groups.count for policy in policies] == [2, 1]
    together = true_returns(policies, TASK, trials=8, seed=0)
    for policy, returns in zip(policies, together, strict=True):
        torch.testing.assert_close(true_returns([policy], TASK, trials=8, seed=0)[0], returns)
    adapted = policies[1].adapt(record(1.0, 4))
    assert adapted.group == 0
    assert adapted.group_probability == 1.0


def test_centroids_stand_for_the_subjects_of_a_group(grouped: PersonalPolicy) -> None:
    factors, groups = grouped.model.subject_factors(ROWS), grouped.groups
    assert groups is not None
    drawn, paper = (
        replace(GROUPED, centroids=centroids)._parts(Job(ROWS), factors, groups) for centroids in (False, True)
    )
    member = groups.chances(factors).argmax(1)[ROWS.subject]
    for group in range(2):
        one, two = drawn[group], paper[group]
        assert one is not None
        assert two is not None
        assert torch.equal(two.theta, groups.centre[group].expand(len(two.data), -1))
        assert torch.equal(one.data.subject, ROWS.subject[member == group])
        assert len(one.theta.unique()) == len(one.data.subject.unique())
    empty = Groups(torch.cat([groups.centre, torch.tensor([[50.0]])]), torch.tensor([0.5, 0.4, 0.1]))
    assert GROUPED._parts(Job(ROWS), factors, empty)[2] is None


def test_q_learning_of_groups(tmp_path: Path) -> None:
    """The paper's: counterfactual rows and a D3QN for each group."""
    learner = cp.D3QN((8,), Schedule(steps=10, check_every=5), 16)
    general = cp.CTRLg(MODEL, learner=learner, selection=cp.simulation.CheckpointSelection(starts=4), sees_factor=False)
    policy = cp.CTRLp(general, cp.models.KMeansGroups(2), centroids=True).fit(ROWS, TASK)
    assert isinstance(policy, PersonalPolicy)
    assert len(policy.policies) == 3
    policy.save(tmp_path)
    again = cp.load(tmp_path)
    rows = record(1.0, 6)
    assert torch.equal(again.adapt(rows).policy.act(ABOVE), policy.adapt(rows).policy.act(ABOVE))
    assert true_returns([policy], TASK, trials=4, seed=0).isfinite().all()


def test_what_makes_no_personal_policy_is_one_line(grouped: PersonalPolicy) -> None:
    assert "2 subjects; give the rows of one" in refused(lambda: grouped.adapt(ROWS[ROWS.subject < 2]))
    other = replace(ROWS[:4], schema=cp.Schema.of(["y"], DOSES))
    assert "state columns of the policy are x" in refused(lambda: grouped.adapt(other))
    assert "sees_factor" in refused(lambda: replace(GROUPED, groups=None))
    assert "sees_factor" in refused(lambda: replace(SEEING, groups=cp.models.MixtureGroups()))

    class Other(TwoKinds):
        actions = cp.Discrete.of([0.0, 1.0])

    for learner in (SEARCH, cp.CTRLg(MODEL, sees_factor=False)):
        assert "actions of the task" in refused(lambda learner=learner: cp.CTRLp(learner).fit(ROWS, Other()))
    assert "leave theta out" in refused(lambda: GROUPED.fit(ROWS, TASK, theta=torch.zeros(len(ROWS), 1)))


def test_a_hand_made_policy_tracks_its_subject_exactly() -> None:
    """With the law known, the group at work is the one Bayes' rule names from the rows so far."""
    rows = record(1.0, 4)
    model = by_hand([[0.0, 0.0, 1.0]], 0.2, rows)
    groups = Groups(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.5, 0.5]))
    policies = [SEARCH.with_models([Job(ROWS, seed)], [model], TASK)[0].selected for seed in range(3)]
    policy = PersonalPolicy(GROUPED, model, groups, policies, rows.schema, Origin.of(Job(rows)))
    for t in range(1, 5):
        dose, change = rows.action[:t, 0], (rows.next_state - rows.state)[:t, 0]
        odds = [float(torch.distributions.Normal(c * dose, 0.2).log_prob(change).sum()) for c in (-1.0, 1.0)]
        torch.testing.assert_close(policy.adapt(rows[:t]).chances, torch.tensor(odds).softmax(0), rtol=0, atol=1e-4)
