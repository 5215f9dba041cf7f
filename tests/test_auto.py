"""The choice among SCMs: by rows held out from the fit, for the plainer where chance cannot tell, and on record."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import counterpoint
from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Job, context
from counterpoint.data.transitions import concatenate
from counterpoint.models.scm.auto import AutoSCM, HeldOutScores, _behind, _energy, _selection, held_out_scores
from counterpoint.models.scm.bicogan import ConditionalBiCoGAN
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.laws import Gaussian, SkewedSpline
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor, Schedule
from reproduction.tasks.structural_problems import (
    Additive,
    Bimodal,
    sample,
)

QUICK = DensitySCM(Gaussian(), 2, (16,), likelihood=Likelihood(Schedule(300, check_every=50), learning_rate=1e-2))
PLAIN_OR_SKEWED = AutoSCM((QUICK, replace(QUICK, law=SkewedSpline())))
BRIEFLY = replace(QUICK, likelihood=Likelihood(Schedule(20, 10)))
BRIEF = AutoSCM((BRIEFLY, replace(BRIEFLY, law=SkewedSpline())))


SAME = HeldOutScores(torch.zeros(3), torch.zeros(3))


def scores(log_likelihood: list[float] | None, energy: list[float]) -> HeldOutScores:
    return HeldOutScores(None if log_likelihood is None else torch.tensor(log_likelihood), torch.tensor(energy))


class TestTheChoice:
    recipes = (QUICK, replace(QUICK, law=SkewedSpline()))

    def test_the_difference_is_counted_in_standard_errors(self) -> None:
        """Differences 1, 2, 3 have mean 2, standard deviation 1 and standard error 1/√3."""
        ahead, behind = scores([1.0, 2.0, 3.0], [0.0] * 3), scores([0.0, 0.0, 0.0], [0.0] * 3)
        assert _behind(behind, ahead) == pytest.approx(2 * 3**0.5)
        assert _behind(ahead, behind) == pytest.approx(-2 * 3**0.5)

    def test_the_plainer_is_taken_where_chance_explains_the_difference(self) -> None:
        choice = _selection(self.recipes, [scores([0.0, 0.0, 0.0], [0.0] * 3), scores([1.0, -1.0, 0.5], [0.0] * 3)])
        assert choice.recipe is self.recipes[0]
        assert "SkewedSpline predicts 3 held-out rows best, but Gaussian is simpler" in choice.why

    def test_the_better_is_taken_where_it_is_clearly_better(self) -> None:
        choice = _selection(self.recipes, [scores([0.0, 0.0, 0.0], [0.0] * 3), scores([1.0, 1.1, 0.9], [0.0] * 3)])
        assert choice.recipe is self.recipes[1]
        assert choice.candidates[0].behind > 2 > choice.candidates[1].behind

    def test_a_model_without_density_wins_only_by_its_energy_score(self) -> None:
        gan = ConditionalBiCoGAN()
        with_density = scores([0.0, 0.0, 0.0], [-1.0, -1.0, -1.1])
        better, alike = scores(None, [-0.5, -0.5, -0.4]), scores(None, [-1.0, -1.1, -0.9])
        assert _selection((QUICK, gan), [with_density, better]).recipe is gan
        assert _selection((QUICK, gan), [with_density, alike]).recipe is QUICK


def test_two_modes_are_bent_and_a_normal_noise_is_not() -> None:
    bimodal, normal = PLAIN_OR_SKEWED.select([Job(sample(task, 600, 0), 0) for task in (Bimodal(), Additive())])
    assert isinstance(bimodal.recipe, DensitySCM)
    assert isinstance(normal.recipe, DensitySCM)
    assert bimodal.recipe.law == SkewedSpline()
    assert normal.recipe.law == Gaussian()


def test_held_out_scores_prefer_the_rows_own_law() -> None:
    rows = sample(Additive(), 400, 0)
    model = QUICK.fit(rows)
    right = held_out_scores(model, Job(sample(Additive(), 400, 1)))
    wrong = held_out_scores(model, Job(replace(rows, next_state=rows.next_state + 2)))
    assert right.log_likelihood is not None
    assert wrong.log_likelihood is not None
    assert right.log_likelihood.mean() > wrong.log_likelihood.mean() + 1
    assert right.negative_energy.mean() > wrong.negative_energy.mean() + 0.2


def test_the_density_of_an_ensemble_is_the_mean_of_its_members() -> None:
    rows = sample(Additive(), 100, 0)
    model = BRIEFLY.fit(rows)
    told = context(rows.state, rows.action).expand(2, -1, -1)
    each = model.mechanism.law.log_prob(told, (rows.next_state - rows.state).expand(2, -1, -1)).sum(-1)
    found = held_out_scores(model, Job(rows)).log_likelihood
    torch.testing.assert_close(found, each.exp().mean(0).log().detach(), rtol=0, atol=1e-4)


def test_the_energy_score_by_hand() -> None:
    """Draws one deviation above and one below what was seen: each is as far from it as half their distance."""
    rows = sample(Additive(), 50, 0)
    unit, sign = (rows.next_state - rows.state).std(0), cycle((1, -1))
    spread, still = (
        SimpleNamespace(sample=lambda *_, size=size: rows.next_state + size * next(sign) * unit) for size in (1, 0)
    )
    theta = Job(rows).rows_theta
    for model in (spread, still):
        torch.testing.assert_close(_energy(model, rows, theta, 0), torch.zeros(50), rtol=0, atol=1e-4)
    aside = SimpleNamespace(sample=lambda *_: rows.next_state + unit)
    torch.testing.assert_close(_energy(aside, rows, theta, 0), torch.full((50,), rows.state_size**0.5))


class Watched(DensitySCM):
    """Remembers what it was fitted on."""

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[Any]:
        FITTED.append(list(jobs))
        return super().fit_many(jobs, monitor, device)


FITTED: list[list[Job]] = []


def test_no_subject_is_both_fitted_on_and_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subjects of 1 to 7 rows, each with a factor that is its number; rows that no model may see are in neither."""
    rows = sample(Additive(), 252, 0)
    random = torch.Generator().manual_seed(0)
    subject = torch.arange(63).repeat_interleave(torch.arange(63) % 7 + 1)[torch.randperm(252, generator=random)]
    rows = replace(rows, subject=subject, subject_names=tuple(map(str, range(63))))
    rows.next_state[5] = torch.nan
    rows = concatenate([rows, replace(rows[:9], imagined=torch.ones(9, dtype=torch.bool))])
    usable = (~rows.imagined & rows.has_next).nonzero()[:, 0]
    jobs = [Job(rows, seed, rows.subject[:, None].float()) for seed in range(6)]
    judged: list[Job] = []
    monkeypatch.setattr(
        "counterpoint.models.scm.auto.held_out_scores", lambda model, job, *_: judged.append(job) or SAME
    )
    FITTED.clear()
    AutoSCM((Watched(Gaussian(), 1, (4,), likelihood=Likelihood(Schedule(2))),), held_out=0.3).select(jobs)
    (fitted,) = FITTED
    asides = set()
    for kept, aside in zip(fitted, judged, strict=True):
        subjects = [set(part.data.subject.tolist()) for part in (kept, aside)]
        assert not subjects[0] & subjects[1]
        assert len(kept.data) + len(aside.data) == len(usable)
        for part in (kept, aside):
            assert torch.equal(part.theta[:, 0], part.data.subject.float())
        together = torch.cat([kept.data.row_hashes, aside.data.row_hashes])
        assert torch.equal(together.sort().values, rows[usable].row_hashes.sort().values)
        assert len(aside.data) / len(usable) == pytest.approx(0.3, abs=0.03)
        asides.add(frozenset(subjects[1]))
    assert len(asides) == 6, "the seed decides who is held out"


def test_the_choice_never_sees_the_noise() -> None:
    rows = sample(Bimodal(), 200, 0)
    told, blind = BRIEF.select([Job(rows, 0)]) + BRIEF.select([Job(replace(rows, noise=rows.noise[:, :0]), 0)])
    assert told == blind


def test_the_evidence_stands_in_the_saved_model(tmp_path: Path) -> None:
    rows = sample(Bimodal(), 200, 0)
    model = BRIEF.fit(rows, seed=3)
    assert model.recipe == BRIEF
    model.save(tmp_path)
    written = json.loads((tmp_path / "recipe.json").read_text())["parts"]["selection"]
    assert [candidate["name"] for candidate in written["candidates"]] == ["Gaussian", "SkewedSpline"]
    assert written["why"] == model.selection.why
    torch.testing.assert_close(model.counterfactual(rows, rows.action), rows.next_state, rtol=0, atol=1e-5)
    alone = model.selection.recipe.fit(rows, seed=3)
    torch.testing.assert_close(model.abduct(rows), alone.abduct(rows))
    loaded = counterpoint.load(tmp_path)
    assert (loaded.recipe, loaded.structure, loaded.selection) == (model.recipe, model.structure, model.selection)


def test_wrong_use_is_one_line() -> None:
    with pytest.raises(CounterpointError, match="no candidates"):
        AutoSCM(())
    with pytest.raises(CounterpointError, match="cannot be split"):
        AutoSCM(held_out=0.001).fit(sample(Additive(), 100, 0))
