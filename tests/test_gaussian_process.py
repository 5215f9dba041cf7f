"""Gaussian-process dynamics against scikit-learn's; padding, saving and stopping change nothing, distance does."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import Tensor
from torch.nn.functional import pad

import counterpoint as cp
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job, context
from counterpoint.data.spaces import Box
from counterpoint.data.transitions import Transitions
from counterpoint.learners.evolution import CrossEntropy
from counterpoint.learners.search import Search
from counterpoint.models.dynamics.gaussian_process import (
    TRIANGLE,
    GaussianProcess,
    Kernels,
    MarginalLikelihood,
    ProcessMechanism,
    known_part,
)
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.simulation.models import ModelSimulator

torch.set_num_threads(1)

BRIEF = GaussianProcess(Schedule(steps=40, check_every=20, rate="linear"))


def curved(count: int, seed: int) -> Transitions:
    """Two columns that a line does not describe, on scales and levels far from 0 and 1, with noise."""
    random = generator(seed, "curved")
    state = torch.randn(count, 2, generator=random) * torch.tensor([5.0, 0.2]) + torch.tensor([30.0, -1.0])
    action = 2 * torch.rand(count, 1, generator=random) - 1
    bend = torch.cat([8 * torch.sin(state[:, :1] / 3), 0.3 * (4 * action).cos()], 1)
    noise = torch.randn(count, 2, generator=random) * torch.tensor([1.0, 0.05])
    flags = torch.zeros(count, dtype=torch.bool)
    return Transitions.logged(
        state=state,
        action=action,
        next_state=state + 2 - 0.1 * (state - 30) + bend + noise,
        reward=torch.zeros(count),
        terminated=flags,
        truncated=flags,
        subject=torch.arange(count),
        step=torch.zeros(count, dtype=torch.long),
        actions=Box((-1.0,), (1.0,)),
    )


def cartpole(trials: int, seed: int) -> Transitions:
    return cp.simulate(cp.CartPole(), cp.random_policy(cp.CartPole()), trials, 20, seed)


def table(rows: Transitions) -> tuple[np.ndarray, np.ndarray]:
    told = context(rows.state, rows.action).double().numpy()
    return told, (rows.next_state - rows.state).double().numpy()


@torch.no_grad()
def moments(model: Any, rows: Transitions) -> tuple[Tensor, Tensor]:
    mean, deviation = model.mechanism.moments(context(rows.state, rows.action)[None])
    return mean[0], deviation[0]


def reference(kernels: Kernels, column: int) -> Any:
    """Scikit-learn's regressor under the same hyperparameters."""
    length, signal, noise = (
        p.detach().double()[0, column].exp().numpy()
        for p in (kernels.log_length, kernels.log_signal, kernels.log_noise)
    )
    kernel = ConstantKernel(signal**2) * RBF(length) + WhiteKernel((signal * noise) ** 2)
    return GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None)


@pytest.fixture(scope="module")
def fitted() -> tuple[Any, Transitions]:
    rows = curved(120, 0)
    return BRIEF.fit(rows), rows


def standardised(rows: Transitions) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean and deviation of the inputs, the slopes of the changes on them, and the level of the changes."""
    told, y = table(rows)
    mean, scale, level = told.mean(0), told.std(0), y.mean(0)
    slope = np.linalg.lstsq((told - mean) / scale, y - level, rcond=None)[0]
    return mean, scale, slope, level


def test_mean_and_deviation_are_those_of_scikit_learn(fitted: tuple[Any, Transitions]) -> None:
    """In the units of the state: a regression on standardised inputs, and scikit-learn's process on what it leaves."""
    model, rows = fitted
    (told, y), (asked, _), (mean, scale, slope, level) = table(rows), table(curved(50, 1)), standardised(rows)
    x, query = (told - mean) / scale, (asked - mean) / scale
    left = y - level - x @ slope
    unit = left.std(0)
    found = moments(model, curved(50, 1))
    for column in range(2):
        process = reference(model.mechanism.kernels, column).fit(x, left[:, column] / unit[column])
        expected, deviation = process.predict(query, return_std=True)
        expected = level[column] + query @ slope[:, column] + unit[column] * expected
        np.testing.assert_allclose(found[0][:, column], expected, rtol=1e-4, atol=1e-4 * unit[column])
        np.testing.assert_allclose(found[1][:, column], unit[column] * deviation, rtol=1e-4)


def by_hand() -> tuple[Kernels, Tensor, Tensor, Tensor]:
    """Hyperparameters far from their start, for two columns of 30 rows."""
    kernels, random = Kernels(1, 3, 2).double(), generator(0, "by hand")
    with torch.no_grad():
        for parameter in kernels.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=random)
    x, z = (torch.randn(1, 30, width, generator=random).double() for width in (3, 2))
    return kernels, x, z, torch.ones(1, 30).double()


def test_marginal_likelihood_and_its_gradient_are_those_of_scikit_learn() -> None:
    """Scikit-learn's gradient is by log τ², log ℓ and log σ²; here σ is in units of τ, so log τ moves both."""
    kernels, x, z, mask = by_hand()
    for column in range(2):
        process = reference(kernels, column).fit(x[0].numpy(), z[0, :, column].numpy())
        value, slope = process.log_marginal_likelihood(process.kernel_.theta, eval_gradient=True)
        kernels.zero_grad()
        loss = kernels.loss(x, z[..., column], mask, column)
        loss.sum().backward()
        assert loss.item() == pytest.approx(-value, rel=1e-6)
        signal, noise, length = (p.grad[0, column] for p in (kernels.log_signal, kernels.log_noise, kernels.log_length))  # pyright: ignore
        np.testing.assert_allclose(-length.numpy(), slope[1:4], rtol=1e-6)
        np.testing.assert_allclose(-noise.numpy(), 2 * slope[4], rtol=1e-6)
        np.testing.assert_allclose(-signal.numpy(), 2 * (slope[0] + slope[4]), rtol=1e-6)


def test_padding_counts_for_nothing() -> None:
    """Whatever stands in rows of padding, the loss a row and its gradient stay."""
    kernels, x, z, mask = by_hand()
    plain = MarginalLikelihood(kernels, x, z, mask, 0.1)._loss(learn=True)
    slopes = [p.grad.clone() for p in kernels.parameters()]  # pyright: ignore
    kernels.zero_grad()
    longer, left = (torch.cat([t, torch.full((1, 7, t.shape[-1]), fill)], 1) for t, fill in ((x, 0.3), (z, 0.0)))
    counted = torch.cat([mask, torch.zeros(1, 7)], 1)
    torch.testing.assert_close(MarginalLikelihood(kernels, longer, left, counted, 0.1)._loss(learn=True), plain)
    for parameter, slope in zip(kernels.parameters(), slopes, strict=True):
        torch.testing.assert_close(parameter.grad, slope)


def test_a_large_triangle_is_multiplied_in_blocks() -> None:
    random = generator(0, "triangle")
    near, whitening = (torch.randn(2, rows, 2 * TRIANGLE + 9, generator=random) for rows in (4, 2 * TRIANGLE + 9))
    whole = (near @ whitening.tril().mT).square().sum(-1)
    torch.testing.assert_close(known_part(near, whitening.tril()), whole)


def test_a_mechanism_answers_the_same_with_padding() -> None:
    kernels, x, z, mask = by_hand()
    answers = []
    for more in (0, 7):
        mechanism = ProcessMechanism(1, 3, 2).double()
        mechanism.kernels = kernels
        mechanism.condition(*(pad(t, (0, 0, 0, more)) for t in (x, z)), pad(mask, (0, more)))
        with torch.no_grad():
            answers.append(mechanism.moments(x[:, :5] + 0.5))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other)


@pytest.fixture(scope="module")
def unequal() -> tuple[list[Job], list[Any]]:
    jobs = [Job(curved(count, seed), seed) for seed, count in enumerate((40, 90, 60))]
    return jobs, BRIEF.fit_many(jobs)


def test_jobs_of_different_lengths_fit_as_alone(unequal: tuple[list[Job], list[Any]]) -> None:
    for job, together in zip(*unequal, strict=True):
        alone = BRIEF.fit(job.data, job.seed)
        assert together.mechanism.inputs.shape[1] == len(job.data)
        for one, other in zip(moments(together, curved(30, 9)), moments(alone, curved(30, 9)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_models_of_different_lengths_step_as_alone(unequal: tuple[list[Job], list[Any]]) -> None:
    _, models = unequal
    asked, noise = curved(24, 8), (torch.randn(1, 8, 2, generator=generator(0)),)
    state, action = asked.state.view(3, 8, 2), asked.action.view(3, 8, 1)
    together = ModelSimulator(models).step(state, action, noise, torch.zeros(3, 8, 0))
    for k, model in enumerate(models):
        alone = ModelSimulator([model]).step(state[k : k + 1], action[k : k + 1], noise, torch.zeros(1, 8, 0))
        torch.testing.assert_close(together[k], alone[0], rtol=1e-5, atol=1e-5)


def test_a_saved_process_gives_the_same_answers(fitted: tuple[Any, Transitions], tmp_path: Path) -> None:
    model, rows = fitted
    model.save(tmp_path)
    loaded = cp.load(tmp_path)
    assert (loaded.recipe, loaded.fingerprint) == (model.recipe, model.fingerprint)
    for one, other in zip(moments(loaded, rows), moments(model, rows), strict=True):
        assert torch.equal(one, other)


def test_a_step_draws_from_the_whole_predictive_law(fitted: tuple[Any, Transitions]) -> None:
    model, rows = fitted
    mean, deviation = moments(model, rows[torch.arange(1)])
    state, action = rows.state[:1].expand(20_000, -1), rows.action[:1].expand(20_000, -1)
    change = model.sample(state, action, generator(0)) - state
    assert ((change.mean(0) - mean[0]).abs() < 0.03 * deviation[0]).all()
    torch.testing.assert_close(change.std(0), deviation[0], rtol=0.03, atol=0.0)


def test_deviation_grows_away_from_the_data_up_to_the_prior(fitted: tuple[Any, Transitions]) -> None:
    model, rows = fitted
    away = [replace(rows, state=rows.state + shift * torch.tensor([5.0, 0.2])) for shift in (0.0, 3.0, 8.0, 1000.0)]
    found = torch.stack([moments(model, there)[1][:, 0].mean() for there in away])
    kernels, unit = model.mechanism.kernels, float(model.mechanism.unit[0, 0, 0])
    noise, signal = (float(p[0, 0].detach().exp()) for p in (kernels.log_noise, kernels.log_signal))
    assert (found.diff()[:2] > 0).all()
    assert found[0] > unit * signal * noise
    assert float(found[-1]) == pytest.approx(unit * signal * (1 + noise**2) ** 0.5, rel=1e-4)


def test_hyperparameters_are_as_likely_as_those_that_scikit_learn_finds() -> None:
    rows = curved(60, 0)
    kernels = GaussianProcess().fit(rows).mechanism.kernels
    (told, y), (mean, scale, slope, level) = table(rows), standardised(rows)
    x = (told - mean) / scale
    left = y - level - x @ slope
    for column in range(2):
        z = left[:, column] / left[:, column].std()
        start = ConstantKernel(1.0) * RBF([1.0] * 3, (0.05, 100.0)) + WhiteKernel(0.1)
        with warnings.catch_warnings(action="ignore"):
            best = GaussianProcessRegressor(start, alpha=0.0).fit(x, z).log_marginal_likelihood_value_
        assert reference(kernels, column).fit(x, z).log_marginal_likelihood_value_ > best - 1.0


def test_the_noise_is_found(fitted: tuple[Any, Transitions]) -> None:
    kernels, unit = fitted[0].mechanism.kernels, fitted[0].mechanism.unit[0, 0]
    noise = unit * (kernels.log_noise + kernels.log_signal)[0].exp()
    torch.testing.assert_close(noise.detach(), torch.tensor([1.0, 0.05]), rtol=0.3, atol=0.0)


def test_too_many_rows_are_refused_in_one_line() -> None:
    wanted = "101 rows are more than the 100 of a Gaussian process; take a subset or use DensitySCM"
    with pytest.raises(CounterpointError, match=wanted):
        replace(BRIEF, most=100).fit(curved(101, 0))
    replace(BRIEF, most=100, schedule=Schedule(steps=1)).fit(curved(100, 0))


def test_held_out_changes_are_foretold_no_worse_than_by_a_line() -> None:
    rows, held_out = cartpole(15, 0), cartpole(50, 1)
    (asked, truth), (mean, scale, slope, level) = table(held_out), standardised(rows)
    line = level + (asked - mean) / scale @ slope
    found = moments(replace(BRIEF, schedule=Schedule(steps=60, check_every=20)).fit(rows), held_out)[0].numpy()
    errors = [np.sqrt(np.square(guess - truth).mean(0)) for guess in (found, line)]
    assert (errors[0] < 1.02 * errors[1]).all()


def test_a_curve_is_foretold_better_than_by_a_line(fitted: tuple[Any, Transitions]) -> None:
    model, rows = fitted
    (asked, truth), (mean, scale, slope, level) = table(curved(400, 3)), standardised(rows)
    line = level + (asked - mean) / scale @ slope
    found = moments(model, curved(400, 3))[0].numpy()
    errors = [np.sqrt(np.square(guess - truth).mean(0)) for guess in (found, line)]
    assert (errors[0] < 0.6 * errors[1]).all()


def test_an_interrupted_fit_resumes_to_the_same_weights(tmp_path: Path) -> None:
    rows, recipe = curved(60, 0), GaussianProcess(Schedule(steps=60, check_every=20, rate="linear"))

    def stop(stage: str, done: int, total: int) -> None:
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recipe.fit(rows, monitor=Monitor(tmp_path, report=stop, save_seconds=0))
    assert list(tmp_path.glob("*.checkpoint.safetensors"))
    resumed, whole = recipe.fit(rows, monitor=Monitor(tmp_path, resume=True)), recipe.fit(rows)
    assert resumed.fingerprint == whole.fingerprint
    log = [json.loads(line) for line in (tmp_path / "fit.log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == 60


def test_a_policy_is_searched_in_a_process() -> None:
    search = Search(BRIEF, optimizer=CrossEntropy(candidates=8), schedule=Schedule(steps=2, check_every=1), starts=2)
    rows = cartpole(5, 0)
    policy = replace(search, restarts=1, choosing_starts=2, horizon=5).fit(rows, cp.CartPole())
    assert policy.act(rows.state).shape[0] == len(rows)
