"""Random effects: the linear fit and its likelihood, the exact posterior of a subject, and the SCM built on them."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import binom, chi2, multivariate_normal
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Job, context
from counterpoint.data.transitions import concatenate, first_outcome
from counterpoint.models.base import SubjectFactors
from counterpoint.models.scm.effects import choosing
from counterpoint.models.scm.effects.changes import Change, EquationForm
from counterpoint.models.scm.effects.choosing import choose_changes, choose_factors, choose_noise
from counterpoint.models.scm.effects.law import EffectsLaw, marginal
from counterpoint.models.scm.effects.linear import LinearEffects, Sums, fit, improve
from counterpoint.models.scm.effects.mechanism import EffectsMechanism, align
from counterpoint.models.scm.effects.prepared import EffectsTable, prepare
from counterpoint.simulation.models import ModelSimulator
from helpers.effects import EFFECT, MEAN, NOISE, RECIPE, by_hand, generator, linear_rows, logged, responders
from helpers.tables import refused


def table(rows: cp.Transitions) -> EffectsTable:
    return EffectsTable(context(rows.state, rows.action), rows.state, rows.next_state, rows.subject)


def sums(rows: cp.Transitions) -> Sums:
    x = torch.cat([torch.ones(len(rows), 1), rows.state, rows.action], 1)
    return Sums.of(x, rows.next_state - rows.state, rows.subject, len(rows.subject_names))


def thetas(subjects: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(subjects, width, generator=generator(seed))


# The linear model.


@pytest.mark.parametrize("width", [1, 2])
def test_the_linear_fit_recovers_mean_effects_and_noise(width: int) -> None:
    theta = thetas(600, width)
    found = fit(sums(linear_rows(theta, 10, 1)), width)
    effect = EFFECT[..., :width].flatten(0, 1).double()
    spread = effect @ effect.T  # B·B' does not depend on how factors are turned.
    torch.testing.assert_close(found.mean, (MEAN + EFFECT[..., :width] @ theta.mean(0)).double(), rtol=0, atol=0.03)
    torch.testing.assert_close(found.effect.flatten(0, 1) @ found.effect.flatten(0, 1).T, spread, rtol=0, atol=0.06)
    torch.testing.assert_close(found.covariance, NOISE.double(), rtol=0, atol=0.006)


def test_the_likelihood_is_that_of_a_subjects_stacked_rows() -> None:
    """Cov(y_t, y_t') = (x_t·B)(x_t'·B)' + [t = t']·Σ, for records of different lengths."""
    random, counts = generator(3), [1, 4, 7]
    subject = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    x, y = (torch.randn(12, width, generator=random).double() for width in (3, 2))
    mean, effect = (torch.randn(*shape, generator=random).double() for shape in ((3, 2), (3, 2, 2)))
    model = LinearEffects(mean, effect, NOISE.double())
    expected = []
    for own in range(3):
        here = subject == own
        loading = torch.einsum("tp,pdr->tdr", x[here], effect).reshape(-1, 2)
        covariance = loading @ loading.T + torch.kron(torch.eye(counts[own]), NOISE).double()
        expected.append(multivariate_normal((x[here] @ mean).flatten(), covariance).logpdf(y[here].flatten()))
    torch.testing.assert_close(model.log_likelihood(Sums.of(x, y, subject, 3)), torch.tensor(expected).double())


def test_an_iteration_never_lowers_the_likelihood() -> None:
    known, random = sums(linear_rows(thetas(60, 2), 6, 2)), generator(4)
    weight = torch.ones(60).double()
    first, bent = (torch.randn(*shape, generator=random).double() for shape in ((4, 2), (4, 2, 2)))
    effects = LinearEffects(first, bent, torch.eye(2).double())
    likelihoods = []
    for _ in range(40):
        likelihoods.append(float(effects.log_likelihood(known).sum()))
        effects = improve(effects, known, weight, 1)
    gains = torch.tensor(likelihoods).diff()
    assert gains.min() > -1e-3
    assert gains[0] > 10


def test_a_subject_that_counts_twice_is_two_subjects() -> None:
    rows = linear_rows(thetas(20, 1), 6, 5)
    twice = concatenate([rows, rows])
    twice = replace(
        twice, subject=torch.cat([rows.subject, rows.subject + 20]), subject_names=tuple(map(str, range(40)))
    )
    start = fit(sums(rows), 1)
    doubled = improve(start, sums(rows), torch.full((20,), 2.0).double(), 3)
    again = improve(start, sums(twice), torch.ones(40).double(), 3)
    torch.testing.assert_close(doubled.effect, again.effect, rtol=0, atol=1e-6)
    torch.testing.assert_close(doubled.covariance, again.covariance, rtol=0, atol=1e-6)


def test_a_dose_that_never_varies_can_be_fitted() -> None:
    rows = linear_rows(thetas(12, 1), 6, 6)
    still = replace(rows, action=torch.full_like(rows.action, 0.5))
    model = RECIPE.fit(still)
    assert model.counterfactual(still, still.action).isfinite().all()


# What a table chooses.


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("width", [0, 1])
def test_the_number_of_factors_is_chosen_on_subjects_kept_aside(width: int, seed: int) -> None:
    rows = linear_rows(thetas(60, width, seed), 8, seed)
    assert choose_factors(table(rows), EquationForm(("difference", "difference")), 3, seed) == width


def grown(kind: Change | Callable[[Tensor, Tensor, Tensor], Tensor], seed: int = 0) -> cp.Transitions:
    """Volumes over four orders of magnitude that change by 5% of themselves or so, or by a steady amount."""
    random = generator(seed)
    subject = torch.arange(60).repeat_interleave(10)
    volume = (4 * torch.rand(600, 1, generator=random) + 0.5).exp()
    dose, luck = torch.rand(600, 1, generator=random), torch.randn(600, 1, generator=random)
    rate = (-0.4 * dose) * (1 + 0.5 * torch.randn(60, 1, generator=random)[subject])
    after = {
        "difference": lambda: (volume + rate + 0.1 * luck).clamp(min=1e-3),
        "ratio": lambda: volume * (1 + rate.clamp(min=-0.8) + 0.02 * luck),
        "log ratio": lambda: volume * (3 * rate + 0.5 * luck).exp(),
    }
    return logged(volume, dose, kind(volume, dose, luck) if callable(kind) else after[kind](), subject)


def proportional(volume: Tensor, dose: Tensor, luck: Tensor) -> Tensor:
    """The larger, the noisier."""
    return volume - dose + (0.1 + 0.05 * volume) * luck


@pytest.mark.parametrize("kind", ["difference", "ratio", "log ratio"])
def test_what_a_change_means_is_chosen_on_subjects_kept_aside(kind: Change) -> None:
    assert choose_changes(table(grown(kind)), EquationForm(("difference",)), 1, 0).changes == (kind,)


def test_a_column_that_is_not_always_positive_changes_by_differences() -> None:
    rows = grown("ratio")
    shifted = replace(rows, state=rows.state - 5, next_state=rows.next_state - 5)
    assert choose_changes(table(shifted), EquationForm(("difference",)), 1, 0).changes == ("difference",)
    said = refused(lambda: replace(RECIPE, changes=("ratio",)).fit(shifted))
    assert "'state_0' is not always positive" in said
    assert "changes names 2 columns of 1" in refused(lambda: replace(RECIPE, changes=("ratio",) * 2).fit(rows))


def test_noise_proportional_to_the_amount_is_found_where_it_is() -> None:
    plain = EquationForm(("difference",))
    constant = grown(lambda volume, dose, luck: volume - dose + 0.5 * luck)
    assert choose_noise(table(grown(proportional)), plain, 1, 0).combined
    assert not choose_noise(table(constant), plain, 1, 0).combined
    ratio = EquationForm(("ratio",))
    assert choose_noise(table(grown(proportional)), ratio, 1, 0) == ratio


def test_the_noise_of_many_columns_is_not_chosen_because_no_row_is_weighed_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choosing, "held_out_density", lambda *_: pytest.fail("fitted twice to the same sums"))
    width = 9
    wide = torch.randn(60, width, generator=torch.Generator().manual_seed(0)) + 5
    rows = EffectsTable(torch.cat([wide, wide[:, :1]], 1), wide, wide + 0.1, torch.arange(60) // 6)
    plain = EquationForm(("difference",) * width)
    assert choose_noise(rows, plain, 1, 0) == plain


def test_the_combined_noise_of_a_fitted_law_is_that_of_the_rows() -> None:
    def after(volume: Tensor, dose: Tensor, luck: Tensor) -> Tensor:
        return volume - dose + (0.3**2 + (0.1 * volume) ** 2).sqrt() * luck

    rows = grown(after)
    model = replace(RECIPE, factors=0, changes=("difference",), ensemble=1).fit(rows)
    law = model.mechanism.law
    assert law.layout.combined
    small, large = (torch.full((1, 1, 1), amount) for amount in (2.0, 80.0))
    for volume, expected in ((small, 0.36), (large, 8.0)):
        step = law.step(torch.cat([volume, torch.zeros(1, 1, 1)], -1), volume)
        deviation = float((step.deviation * step.root[..., 0] * law.unit).detach())
        assert deviation == pytest.approx(expected, rel=0.25)


# Changes.

KINDS = EquationForm(("difference", "ratio", "log ratio", "difference"), unpredicted=(3,))


def test_changes_lead_back_to_the_next_state() -> None:
    state, after = (torch.rand(50, 4, generator=generator(seed)) + 0.1 for seed in (0, 1))
    y = KINDS.change(state, after)
    torch.testing.assert_close(y[:, 0], after[:, 0] - state[:, 0])
    torch.testing.assert_close(y[:, 1], after[:, 1] / state[:, 1] - 1)
    torch.testing.assert_close(y[:, 2], (after[:, 2] / state[:, 2]).log())
    back = KINDS.after(state, y)
    torch.testing.assert_close(back[:, :3], after[:, :3])
    assert torch.equal(back[:, 3], state[:, 3])
    assert (KINDS.after(state, torch.full((50, 3), -5.0))[:, 1:3] > 0).all()


def test_the_log_slope_is_the_derivative_of_the_change() -> None:
    state, after = (torch.rand(4, generator=generator(seed)) + 0.1 for seed in (0, 1))
    slope = torch.autograd.functional.jacobian(lambda s: KINDS.change(state, s), after)
    torch.testing.assert_close(KINDS.log_slope(state, after), torch.as_tensor(slope)[:, :3].diagonal().log())


def test_equations_are_told_logarithms_of_what_grows_and_nothing_else() -> None:
    told = torch.tensor([[2.0, 3.0, 4.0, -5.0, -1.0]])
    logs = torch.tensor([[2.0, 3.0, 4.0]]).log()
    expected = torch.cat([told[:, :1], logs[:, 1:], told[:, 3:]], 1)
    torch.testing.assert_close(KINDS.features(told), expected)
    everywhere = replace(KINDS, changes=("difference", "ratio", "log ratio", "ratio"))
    torch.testing.assert_close(everywhere.features(told), expected)


def test_the_law_gives_a_subject_the_likelihood_of_the_linear_model() -> None:
    """Silent networks: evidence and marginal together are the mixed-effects model, in the units of the columns."""
    rows, layout = linear_rows(thetas(30, 1), 5, 8), EquationForm(("difference", "difference"))
    ready = prepare(table(rows), layout, 1)
    found = fit(ready.sums, 1)
    law = EffectsLaw(1, layout, 3, 1, (4,))
    law.take(0, found, ready)
    found_rows = law.evidence(
        law.step(table(rows).inputs[None], rows.state[None]), rows.next_state[None] - rows.state[None]
    )
    each = [torch.zeros(30, *part.shape[2:]).index_add(0, rows.subject, part[0].detach()) for part in found_rows]
    expected = each[2] + marginal(each[0], each[1] + torch.eye(1))
    torch.testing.assert_close(expected.double(), found.log_likelihood(ready.sums) + ready.log_slope, rtol=0, atol=1e-2)


# The posterior of a subject.

ROWS = responders(torch.tensor([1.0, -0.5, 0.0, 2.0]), 6, 0)
HAND = by_hand([[0.0, 0.0, 1.0]], 0.5, ROWS)


def test_the_posterior_is_the_hand_worked_gaussian() -> None:
    """s' = s + θ·a + ½u: precision 1 + 4·Σa², mean 4·Σa·(s' − s) over it; the prior without rows."""
    found = HAND.subject_factors(ROWS)
    for own in range(4):
        here = ROWS.subject == own
        dose, change = ROWS.action[here, 0], (ROWS.next_state - ROWS.state)[here, 0]
        precision = 1 + 4 * dose.square().sum()
        torch.testing.assert_close(found.mean[own, 0], 4 * (dose * change).sum() / precision)
        torch.testing.assert_close(found.covariance[own, 0, 0], 1 / precision)
    torch.testing.assert_close(HAND.subjects(ROWS), found.mean[ROWS.subject])
    for none in (HAND.subject_factors(ROWS[:0]), HAND.factors_before(ROWS[ROWS.step == 0])):
        assert torch.equal(none.mean, torch.zeros(4, 1))
        assert torch.equal(none.covariance, torch.ones(4, 1, 1))


@pytest.fixture(scope="module")
def fitted() -> tuple[cp.Transitions, object]:
    rows = linear_rows(thetas(40, 2), 8, 9)
    return rows, replace(RECIPE, factors=2, ensemble=3).fit(rows)


def test_order_says_nothing(fitted) -> None:
    """Neither that of rows nor that of subjects, nor in how many episodes a record came."""
    rows, model = fitted
    expected = model.subject_factors(rows)
    shuffled = rows[torch.randperm(len(rows), generator=generator(0))]
    number = torch.randperm(40, generator=generator(1))
    renumbered = replace(rows, subject=number[rows.subject])
    cut = replace(rows, episode=2 * rows.subject + rows.step // 4, step=rows.step % 4)
    for other, place in ((shuffled, torch.arange(40)), (renumbered, number), (cut, torch.arange(40))):
        found = model.subject_factors(other)
        torch.testing.assert_close(found.mean[place], expected.mean, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.covariance[place], expected.covariance, rtol=0, atol=1e-5)


def test_a_tracker_knows_after_each_step_what_the_rows_so_far_tell(fitted) -> None:
    rows, model = fitted
    tracker, before = model.tracker(), model.factors_before(rows)
    for t in range(8):
        now, earlier = rows[rows.step == t], rows[rows.step < t]
        expected = model.subject_factors(earlier)
        found = tracker.factors(40)
        torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.covariance, expected.covariance, rtol=0, atol=1e-4)
        torch.testing.assert_close(before.mean[rows.step == t], expected.mean, rtol=0, atol=1e-5)
        torch.testing.assert_close(before.covariance[rows.step == t], expected.covariance, rtol=0, atol=1e-5)
        tracker.update(now.state, now.action, now.next_state)


def test_what_comes_before_a_row_is_a_matter_of_episode_and_step(fitted) -> None:
    """Shuffled rows, two episodes a subject, and imagined rows, which see what the row they came from did."""
    rows, model = fitted
    cut = replace(rows, episode=2 * rows.subject + rows.step // 4, step=rows.step % 4)
    shuffle = torch.randperm(len(rows), generator=generator(2))
    expected = model.factors_before(rows).mean
    torch.testing.assert_close(model.factors_before(cut[shuffle]).mean, expected[shuffle], rtol=0, atol=1e-5)
    both = concatenate([rows, replace(rows, imagined=torch.ones(len(rows), dtype=torch.bool))])
    torch.testing.assert_close(model.factors_before(both).mean, expected.repeat(2, 1), rtol=0, atol=1e-5)


def test_imagined_rows_and_rows_without_a_next_state_say_nothing(fitted) -> None:
    rows, model = fitted
    expected = model.subject_factors(rows[rows.step < 6])
    silent = rows.step == 6
    ended = replace(
        rows,
        next_state=rows.next_state.masked_fill(silent[:, None], torch.nan),
        outcome=first_outcome(silent),
        imagined=rows.step == 7,
    )
    found = model.subject_factors(ended)
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=0, atol=1e-6)


def covered(mean: Tensor, covariance: Tensor, truth: Tensor, rate: float) -> int:
    """How many subjects' truth lies in the ellipsoid that should hold it at this rate."""
    apart = (truth - mean)[..., None]
    distance = (apart.mT @ torch.linalg.solve(covariance, apart))[:, 0, 0]
    return int((distance <= chi2.ppf(rate, truth.shape[1])).sum())


@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_the_posterior_covers_the_truth_at_its_stated_rate(rate: float) -> None:
    """Of a law that is known, two factors; and of one that was fitted, on subjects it has not seen."""
    low, high = binom.ppf([0.001, 0.999], 300, rate)
    theta, random = thetas(300, 2, 5), generator(6)
    subject = torch.arange(300).repeat_interleave(4)
    state, action, luck = (torch.randn(1200, 1, generator=random) for _ in range(3))
    own = theta[subject]
    after = state + own[:, :1] * action + own[:, 1:] * 0.5 + 0.5 * luck
    rows = logged(state, action, after, subject, actions=cp.Box((-9.0,), (9.0,)))
    found = by_hand([[0.0, 0.0, 1.0], [0.5, 0.0, 0.0]], 0.5, rows).subject_factors(rows)
    assert low <= covered(found.mean, found.covariance, theta, rate) <= high
    model = replace(RECIPE, ensemble=1).fit(linear_rows(thetas(300, 1, 7), 6, 7))
    new = thetas(300, 1, 8)
    found = model.subject_factors(linear_rows(new, 3, 8))
    side = torch.sign((found.mean * new).sum())
    low, high = binom.ppf([0.001, 0.999], 300, rate) + torch.tensor([-9.0, 9.0]).numpy()
    assert low <= covered(side * found.mean, found.covariance, new, rate) <= high


def test_draws_are_as_likely_as_the_posterior() -> None:
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.5]])
    many = SubjectFactors(torch.tensor([[3.0, -1.0]]).expand(20_000, 2), covariance.expand(20_000, 2, 2))
    drawn = many.draw(generator(0))
    torch.testing.assert_close(drawn.mean(0), torch.tensor([3.0, -1.0]), rtol=0, atol=0.03)
    torch.testing.assert_close(drawn.T.cov(), covariance, rtol=0, atol=0.03)
    sure = SubjectFactors(torch.ones(3, 2), torch.zeros(3, 2, 2))
    assert torch.equal(sure.draw(generator(0)), torch.ones(3, 2))


# The SCM.

TYPES = cp.Column("type", levels=("a", "b"), static=True)


def patients(seed: int = 0, subjects: int = 30, steps: int = 8) -> cp.Transitions:
    """A volume with combined noise, an age and a type that never change, and the last dose."""
    random = generator(seed)
    theta = torch.randn(subjects, generator=random)
    age, kind = 50 + 9 * torch.randn(subjects, generator=random), torch.arange(subjects) % 2
    state, rows = torch.stack([torch.rand(subjects, generator=random) * 40 + 5, age, kind], 1), []
    for _ in range(steps):
        dose, luck = (torch.rand(subjects, 1, generator=random), torch.randn(subjects, generator=random))
        volume = state[:, 0]
        moved = volume + (1 + 0.3 * theta) * (1 - 2 * dose[:, 0]) + kind + (0.1 + 0.05 * volume) * luck
        after = torch.cat([moved[:, None], state[:, 1:]], 1)
        rows.append((state, dose, after))
        state = after
    state, dose, after = (torch.stack(column, 1).flatten(0, 1) for column in zip(*rows, strict=True))
    schema = cp.Schema((cp.Column("volume"), cp.Column("age", static=True), TYPES), DOSES_UP, ("dose",))
    return cp.data.with_lags(
        logged(state, dose, after, torch.arange(subjects).repeat_interleave(steps), schema=schema), 2
    )


DOSES_UP = cp.Box((0.0,), (1.0,))


@pytest.fixture(scope="module")
def ward():
    rows = patients()
    return rows, replace(RECIPE, changes=("difference",) * 5).fit(rows)


def test_the_factual_action_returns_the_record(ward) -> None:
    rows, model = ward
    assert model.mechanism.law.layout.combined
    assert model.mechanism.noise_columns == [0]
    torch.testing.assert_close(model.counterfactual(rows, rows.action), rows.next_state, rtol=0, atol=1e-3)
    theta = model.subjects(rows)
    back = model.predict(rows.state, rows.action, model.abduct(rows), theta)
    torch.testing.assert_close(back, rows.next_state, rtol=0, atol=1e-3)


def test_abducted_noise_is_standard_normal(ward) -> None:
    rows, model = ward
    noise = model.abduct(rows)
    assert noise.mean().abs() < 0.2
    assert noise.std() == pytest.approx(1, abs=0.15)


def test_what_is_told_is_never_foretold(ward) -> None:
    """Age and type stay, the last dose is the one given, the one before that the last."""
    rows, model = ward
    other, theta, random = 1 - rows.action, model.subjects(rows), generator(0)
    silent = torch.zeros(len(rows), model.mechanism.members)
    simulator = ModelSimulator([model])
    stepped = simulator.step(rows.state[None], other[None], simulator.fresh(len(rows), 0)(0), theta[None])[0]
    answers = [
        model.counterfactual(rows, other),
        model.predict(rows.state, other, silent, theta),
        model.sample(rows.state, other, random, theta),
        model.imagine(rows, other[:, None], random)[:, 0],
        stepped,
    ]
    expected = torch.cat([rows.state[:, 1:3], other, rows.state[:, 3:4]], 1)
    for answer in answers:
        assert torch.equal(answer[:, 1:], expected)
        assert (answer[:, 0] - rows.state[:, 0]).abs().mean() > 0.05


def test_a_saved_model_gives_the_same_answers(ward, tmp_path: Path) -> None:
    rows, model = ward
    model.save(tmp_path)
    again = cp.load(tmp_path)
    assert torch.equal(again.counterfactual(rows, 1 - rows.action), model.counterfactual(rows, 1 - rows.action))
    one, two = again.subject_factors(rows), model.subject_factors(rows)
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.covariance, two.covariance)


def test_jobs_fitted_together_are_as_if_fitted_alone() -> None:
    """Tables that choose alike, one that chooses otherwise, and one of too few subjects to keep any aside."""
    few = grown("difference", 3)
    tables = [grown("difference", 0), grown("difference", 1), grown(proportional, 2), few[few.subject < 6]]
    jobs = [Job(rows, seed) for seed, rows in enumerate(tables)]
    recipe = replace(RECIPE, changes=("difference",), schedule=cp.Schedule(40, 20))
    together = recipe.fit_many(jobs)
    assert [model.structure.layout.combined for model in together] == [False, False, True, False]
    for job, model in zip(jobs, together, strict=True):
        alone = recipe.fit(job.data, job.seed)
        found, expected = (each.counterfactual(job.data, 1 - job.data.action) for each in (model, alone))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_members_speak_of_the_same_factors(fitted) -> None:
    """Two factors can be turned without any loss; members that are, are turned back."""
    rows, model = fitted

    def apart(mechanism: EffectsMechanism) -> float:
        """Mean square distance of the other members' factors from the first one's, over the mean square of these."""
        parts = mechanism.evidence(rows)
        sums = [torch.zeros(3, 40, *part.shape[2:]).double().index_add(1, rows.subject, part) for part in parts]
        means = torch.linalg.solve(sums[1] + torch.eye(2), sums[0][..., None])[..., 0]
        return float((means[1:] - means[0]).square().mean() / means[0].square().mean())

    assert apart(model.mechanism) < 0.1
    turned = deepcopy(model.mechanism)
    with torch.no_grad():
        turned.law.rotation.copy_(torch.eye(2))
        effect = turned.law.effect[2].unflatten(-1, (-1, 2)) @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        turned.law.effect[2] = effect.flatten(-2)
    assert apart(turned) > 0.5
    align(turned, rows)
    assert apart(turned) == pytest.approx(apart(model.mechanism), abs=1e-3)


def test_a_network_is_kept_where_it_helps() -> None:
    random = generator(0)
    subject = torch.arange(60).repeat_interleave(10)
    state, dose, luck = (torch.randn(600, 1, generator=random) for _ in range(3))
    after = state + (2 * dose).sin() + 0.3 * torch.randn(60, 1, generator=random)[subject] + 0.1 * luck
    rows = logged(state, dose.clamp(-2, 2), after, subject)
    recipe = replace(RECIPE, ensemble=1, hidden=(16,), schedule=cp.Schedule(200, 50, rate="one-cycle"))
    curved, straight = recipe.fit(rows), replace(recipe, schedule=cp.Schedule(1, 1)).fit(rows)
    silent = torch.zeros(600, 1)
    errors = [
        (m.predict(state, rows.action, silent, m.subjects(rows)) - after).abs().median() for m in (curved, straight)
    ]
    assert errors[0] < 0.6 * errors[1]


def test_what_random_effects_are_not_for_is_one_line() -> None:
    rows = patients()
    volume, age, kind, *lags = rows.schema.states
    moves = replace(rows.schema, states=(volume, age, replace(kind, static=False), *lags))
    assert "'type' is a category that changes" in refused(lambda: RECIPE.fit(replace(rows, schema=moves)))
    assert "leave theta out" in refused(lambda: RECIPE.fit(rows, theta=torch.zeros(len(rows), 1)))
    assert "check_every" in refused(lambda: replace(RECIPE, schedule=cp.Schedule(10)))
    frozen = replace(rows.schema, states=tuple(replace(column, static=True) for column in rows.schema.states))
    assert "nothing ever changes" in refused(lambda: RECIPE.fit(replace(rows, schema=frozen)))
    plain = linear_rows(thetas(3, 1), 8, 0)
    foreign = replace(plain, schema=cp.Schema.of(["x", "y"], plain.actions))
    model = RECIPE.fit(plain)
    for ask in (model.subject_factors, model.factors_before):
        assert "state columns" in refused(lambda ask=ask: ask(foreign))


def test_one_subject_alone_is_a_model_without_differences() -> None:
    rows = linear_rows(thetas(1, 1), 40, 0)
    model = replace(RECIPE, factors=None).fit(rows)
    assert model.theta_width == 0
    torch.testing.assert_close(model.counterfactual(rows, rows.action), rows.next_state, rtol=0, atol=1e-4)
    for none in (model.subject_factors(rows), model.factors_before(rows)):
        assert none.covariance.shape == (len(none.mean), 0, 0)
        assert none.draw(generator(0)).shape == (len(none.mean), 0)
    given = RECIPE.fit(rows).subject_factors(rows)
    assert given.mean.isfinite().all()
