"""Gumbel-max: the posterior, counterfactual stability, and states that mix codes with numbers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from counterpoint.core import artifacts
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job, Origin, context, spread_levels
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Column, Schema
from counterpoint.data.spaces import Box
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm import mixed
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.categorical import draw_exponentials, posterior_gumbels
from counterpoint.models.scm.mixed import MixedSCM, categorical
from counterpoint.nets.laws import Gaussian, Spline
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.stacked import initialise, unstack, with_weights
from counterpoint.nets.training import Schedule
from helpers.recipes import SCMS

torch.set_num_threads(1)
QUICK = Likelihood(Schedule(steps=200, check_every=50, rate="one-cycle"), batch=128)
RECIPE = MixedSCM(((1, 3),), ensemble=2, hidden=(32,), likelihood=QUICK)
NO_ROWS = torch.zeros(0, dtype=torch.long)


def log_p(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def code_logits(temperature: torch.Tensor, code: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The truth of `ward`: a hotter patient moves up, a higher dose moves down, and codes are sticky."""
    sticky = 1.5 * torch.nn.functional.one_hot(code.long(), 3)
    return sticky + torch.stack([1.5 * action, 0 * action, 1.2 * temperature - action], -1)


def ward(count: int, seed: int) -> Transitions:
    """State (temperature, code of 3), a dose in −1…1 that cools; the code follows `code_logits`."""
    random = generator(seed, "ward")
    temperature, dose = torch.randn(count, generator=random), 2 * torch.rand(count, generator=random) - 1
    code = torch.randint(3, (count,), generator=random).float()
    fall = 0.8 * temperature - dose + 0.5 * code + 0.3 * torch.randn(count, generator=random)
    gumbel = -draw_exponentials(count, 3, random).log()
    next_code = (code_logits(temperature, code, dose) + gumbel).argmax(-1).float()
    flags = torch.zeros(count, dtype=torch.bool)
    return Transitions.logged(
        state=torch.stack([temperature, code], -1),
        action=dose[:, None],
        reward=torch.zeros(count),
        next_state=torch.stack([fall, next_code], -1),
        terminated=flags,
        truncated=flags,
        subject=torch.arange(count),
        step=torch.zeros(count, dtype=torch.long),
        actions=Box((-1.0,), (1.0,)),
        state_names=("temperature", "ward"),
    )


@pytest.fixture(scope="module")
def fitted() -> StructuralCausalModel:
    recipe = replace(RECIPE, law=Gaussian(), likelihood=replace(QUICK, schedule=replace(QUICK.schedule, steps=500)))
    return recipe.fit(ward(3000, 0), seed=1)


def test_posterior_gumbels_explain_what_was_seen_even_for_near_ties_and_rare_codes() -> None:
    random = generator(0, "rare")
    table = (6 * torch.randn(400_000, 4, generator=random)).log_softmax(-1)
    seen = torch.randint(4, (400_000,), generator=random)
    exponentials = draw_exponentials(400_000, 4, random)
    exponentials[::2] *= 1e-6
    exponentials[::2].scatter_(-1, seen[::2, None], 1.0)
    gumbels = posterior_gumbels(table, seen, exponentials)
    assert torch.equal((table + gumbels).argmax(-1), seen)


def test_posterior_gumbels_averaged_over_the_codes_are_the_prior() -> None:
    random = generator(1, "prior")
    law = log_p(0.6, 0.3, 0.1).expand(20_000, 3)
    seen = (law - draw_exponentials(20_000, 3, random).log()).argmax(-1)
    gumbels = posterior_gumbels(law, seen, draw_exponentials(20_000, 3, random))
    for category in range(3):
        assert stats.kstest(gumbels[:, category].numpy(), "gumbel_r").pvalue > 0.01
    assert abs(stats.spearmanr(gumbels[:, 0], gumbels[:, 1]).statistic) < 0.02


def test_posterior_maximum_follows_the_law_of_the_maximum_whatever_was_seen() -> None:
    random = generator(2, "maximum")
    law = log_p(0.7, 0.2, 0.1).expand(20_000, 3)
    for code in range(3):
        seen = torch.full((20_000,), code)
        gumbels = posterior_gumbels(law, seen, draw_exponentials(20_000, 3, random))
        assert stats.kstest((law + gumbels).amax(-1).numpy(), "gumbel_r").pvalue > 0.01


def test_counterfactual_codes_follow_the_other_actions_softmax() -> None:
    random = generator(3, "interventional")
    count = 40_000
    before, after = log_p(0.5, 0.3, 0.15, 0.05).expand(count, 4), log_p(0.1, 0.2, 0.3, 0.4)
    seen = (before - draw_exponentials(count, 4, random).log()).argmax(-1)
    codes = (after + posterior_gumbels(before, seen, draw_exponentials(count, 4, random))).argmax(-1)
    expected = after.exp().double() / after.exp().double().sum() * count
    assert stats.chisquare(codes.bincount(minlength=4).numpy(), expected.numpy()).pvalue > 0.01


def test_counterfactual_stability() -> None:
    """Where no other code gained odds against the one seen, it stays; and codes do change where another gained."""
    random = generator(4, "stability")
    before, after = (torch.randn(50_000, 4, generator=random).log_softmax(-1) for _ in range(2))
    seen = torch.randint(4, (50_000,), generator=random)
    codes = (after + posterior_gumbels(before, seen, draw_exponentials(50_000, 4, random))).argmax(-1)
    gain = after - before
    protected = gain.gather(-1, seen[:, None])[:, 0] >= gain.amax(-1)
    assert 5_000 < int(protected.sum()) < 45_000
    assert torch.equal(codes[protected], seen[protected])
    assert float((codes[~protected] != seen[~protected]).float().mean()) > 0.1


def test_counterfactual_stability_of_a_mechanism() -> None:
    """The same through a mechanism: the network's own probabilities decide which rows are protected."""
    recipe = categorical(3, 4, ensemble=1)
    mechanism = recipe.build(2, 3, 1)
    initialise(mechanism, [5])
    model = StructuralCausalModel(recipe, mechanism, ward(1, 5).schema, Origin(0, "", ""), NO_ROWS)
    random = generator(5, "mechanism")
    rows = ward(4000, 5)
    codes = [torch.randint(n, (4000, 2), generator=random).float() for n in (3, 4)]
    rows = replace(
        rows, state=torch.stack([c[:, 0] for c in codes], 1), next_state=torch.stack([c[:, 1] for c in codes], 1)
    )
    action = -rows.action
    counterfactual = model.counterfactual(rows, action)
    for column in range(2):
        before, after = (_probabilities(model, rows.state, a)[column] for a in (rows.action, action))
        seen = rows.next_state[:, column].long()
        protected = (after - before).argmax(-1) == seen
        assert int(protected.sum()) > 500
        assert torch.equal(counterfactual[protected, column].long(), seen[protected])


def test_round_trip_of_a_mixed_state(fitted: StructuralCausalModel) -> None:
    rows = ward(2000, 7)
    back = fitted.counterfactual(rows, rows.action)
    assert torch.equal(back[:, 1], rows.next_state[:, 1])
    assert torch.allclose(back[:, 0], rows.next_state[:, 0], atol=1e-5)


def test_mixed_learns_the_codes_and_the_numbers(fitted: StructuralCausalModel) -> None:
    rows = ward(4000, 8)
    learned = _probabilities(fitted, rows.state, rows.action)[0].exp()
    truth = code_logits(rows.state[:, 0], rows.state[:, 1], rows.action[:, 0]).softmax(-1)
    assert float((learned - truth).abs().mean()) < 0.05
    counterfactual = fitted.counterfactual(rows, -rows.action)
    shift = counterfactual[:, 0] - rows.next_state[:, 0]
    assert float((shift - 2 * rows.action[:, 0]).square().mean().sqrt()) < 0.1


def test_sample_follows_the_learned_probabilities(fitted: StructuralCausalModel) -> None:
    state, action = torch.tensor([[0.5, 1.0]]).expand(20_000, -1), torch.full((20_000, 1), 0.5)
    single = _only_member(fitted, 0)
    codes = single.sample(state, action, generator(0, "sample"))[:, 1].long()
    expected = _probabilities(single, state[:1], action[:1])[0][0].double().exp()
    assert (
        stats.chisquare(codes.bincount(minlength=3).numpy(), (expected / expected.sum()).numpy() * 20_000).pvalue > 0.01
    )


def test_counterfactuals_of_a_model_follow_its_probabilities_under_the_other_action(
    fitted: StructuralCausalModel,
) -> None:
    single, count = _only_member(fitted, 1), 20_000
    rows = ward(count, 10)
    rows = replace(rows, state=torch.tensor([[0.5, 1.0]]).repeat(count, 1), action=torch.full((count, 1), 0.5))
    rows = replace(rows, next_state=single.sample(rows.state, rows.action, generator(1, "factual")))
    codes = single.counterfactual(rows, -rows.action)[:, 1].long()
    expected = _probabilities(single, rows.state[:1], -rows.action[:1])[0][0].double().exp()
    observed = codes.bincount(minlength=3).numpy()
    assert stats.chisquare(observed, (expected / expected.sum()).numpy() * count).pvalue > 0.01


def test_posterior_draws_differ_and_all_explain_the_row(fitted: StructuralCausalModel) -> None:
    rows = ward(500, 9)
    draws = [fitted.posterior(rows, generator(seed)) for seed in (0, 1)]
    assert torch.equal(fitted.abduct(rows), fitted.abduct(rows))
    assert not torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0][:, 0], draws[1][:, 0])
    for noise in draws:
        assert torch.equal(fitted.predict(rows.state, rows.action, noise)[:, 1], rows.next_state[:, 1])


def test_combine_votes_on_codes_and_averages_the_inner_half_of_numbers() -> None:
    mechanism = RECIPE.build(2, 3, 4)
    predictions = torch.tensor([[[1.0, 2], [0, 0]], [[2.0, 2], [0, 1]], [[3.0, 1], [0, 2]], [[6.0, 0], [1, 1]]])
    assert mechanism.combine(predictions).tolist() == [[2.5, 2.0], [0.0, 1.0]]
    tie = torch.tensor([[[0.0, 2]], [[0.0, 1]], [[0.0, 1]], [[0.0, 2]]])
    assert mechanism.combine(tie).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("law", [Gaussian(), Spline()])
def test_many_jobs_fit_as_one(law: Gaussian | Spline) -> None:
    recipe = replace(RECIPE, law=law, likelihood=replace(QUICK, schedule=replace(QUICK.schedule, steps=50)))
    jobs = [Job(ward(300, 0), 0), Job(ward(450, 1), 1)]
    for job, together in zip(jobs, recipe.fit_many(jobs), strict=True):
        alone, rows = recipe.fit(job.data, job.seed), ward(200, 2)
        assert torch.allclose(
            alone.predict(rows.state, rows.action, alone.abduct(rows)),
            together.predict(rows.state, rows.action, together.abduct(rows)),
            atol=1e-5,
        )
        assert torch.allclose(
            alone.counterfactual(rows, -rows.action), together.counterfactual(rows, -rows.action), atol=1e-4
        )


def test_saved_model_predicts_the_same(fitted: StructuralCausalModel, tmp_path) -> None:
    fitted.save(tmp_path)
    classes = (MixedSCM, Gaussian, Likelihood, Schedule, Schema, Column, Knowledge, Box, Origin)
    loaded = artifacts.load(tmp_path, StructuralCausalModel, {c.__name__: c for c in classes})
    rows = ward(100, 3)
    assert (loaded.recipe, loaded.origin, loaded.schema) == (fitted.recipe, fitted.origin, fitted.schema)
    assert torch.equal(loaded.counterfactual(rows, -rows.action), fitted.counterfactual(rows, -rows.action))


@pytest.mark.parametrize("code", [3.0, -1.0, 1.5, float("nan")])
def test_a_wrong_code_is_named(code: float, fitted: StructuralCausalModel) -> None:
    rows = ward(100, 0)
    rows.state[40, 1] = code
    with pytest.raises(CounterpointError, match=r"state column 'ward' holds .* at row 40, .* code 0 to 2"):
        RECIPE.fit(rows)
    with pytest.raises(CounterpointError, match=r"column number 1 holds .* code 0 to 2"):
        fitted.counterfactual(rows, rows.action)


def test_a_wrong_next_code_is_named_and_a_missing_next_state_is_not() -> None:
    rows = ward(100, 0)
    rows.next_state[7] = float("nan")
    rows.next_state[12, 1] = 5
    with pytest.raises(CounterpointError, match=r"next state column 'ward' holds 5 at row 12"):
        RECIPE.fit(rows)


@pytest.mark.parametrize(
    ("categories", "message"), [((), "no cat"), (((2, 3),), "column 2"), (((1, 1),), "at least 2")]
)
def test_categories_that_do_not_fit_the_state(categories: tuple[tuple[int, int], ...], message: str) -> None:
    with pytest.raises(CounterpointError, match=message):
        MixedSCM(categories).fit(ward(100, 0))


def _probabilities(model: StructuralCausalModel, state: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
    mechanism = model.mechanism
    context = spread_levels(torch.cat([state, action], -1).expand(mechanism.members, -1, -1), mechanism.categories)
    with torch.no_grad():
        return [table.exp().mean(0).log() for table in mechanism.codes.log_probabilities(context)]


def _only_member(model: StructuralCausalModel, member: int) -> StructuralCausalModel:
    recipe = replace(model.structure, ensemble=1)
    weights = unstack(model.mechanism.state_dict(), model.mechanism.members)[member]
    mechanism = with_weights(recipe.build(2, 3, 1), weights)
    return StructuralCausalModel(recipe, mechanism, model.schema, model.origin, model.fitted_rows)


class Operations(TorchDispatchMode):
    """The names of all that PyTorch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mixed_step_neither_waits_for_a_gpu_nor_sends_it_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it could not be captured as a graph: no look at a value, no Python number made a tensor."""
    recipe, rows = SCMS["mixed"]
    mechanism = recipe.fit(rows).mechanism
    given = context(rows.state, rows.action), rows.state, mechanism.prior(len(rows), generator(0))
    stacked = [table.expand(2, -1, -1) for table in given]
    expected = mechanism.predict(*stacked)  # Keeps the constants that it needs.
    monkeypatch.setattr(mixed, "_capturing", lambda values: True)
    with Operations() as done:
        found = mechanism.predict(*stacked)
    assert torch.equal(found, expected)
    assert "aten.index.Tensor" in done.names
    assert not done.names & {"aten.lift_fresh.default", "aten.nonzero.default", "aten._local_scalar_dense.default"}
