"""The check of effects: it passes for the true model, and names the model, dose and step whose effect is wrong."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import counterpoint as cp
from counterpoint.checks.assumptions import check_scm
from counterpoint.checks.effects import check_effects
from counterpoint.checks.findings import CheckReport
from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Schema
from counterpoint.models.scm.base import StructuralCausalModel, StructuralMechanism
from helpers.dosing import DOSES, DYNAMICS, dosing_log, log_of, true_effect
from helpers.recipes import DENSITY

SHAPES = False


class Linear(StructuralMechanism):
    """s' = s·A + a·B + sin 2s₃ in the first column + u, one member."""

    def __init__(self, dynamics: Tensor, doses: Tensor) -> None:
        super().__init__()
        self.members, self.noise_width = 1, len(dynamics)
        self.context_width = len(dynamics) + len(doses)
        self.dynamics, self.doses = nn.Parameter(dynamics), nn.Parameter(doses)

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return self._mean(context, state) + noise

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return next_state - self._mean(context, state)

    def _mean(self, context: Tensor, state: Tensor) -> Tensor:
        mean = state @ self.dynamics + context[..., state.shape[-1] :] @ self.doses
        if state.shape[-1] > 2:
            mean[..., 0] += torch.sin(2 * state[..., 2])
        return mean


def fitted(mechanism: StructuralMechanism, rows: cp.Transitions) -> StructuralCausalModel:
    return StructuralCausalModel(DENSITY, mechanism, rows.schema, Origin.of(Job(rows)), rows.row_hashes)


def model_of(rows: cp.Transitions, slow: float = 0.5, dose: float = 0.2) -> StructuralCausalModel:
    """The true model of the dosing log, with another effect of the compartment or of dose `a` on the symptom."""
    dynamics, doses = torch.eye(4) * 0.8, torch.zeros(2, 4)
    dynamics[:2, :2] = torch.tensor(DYNAMICS.T)
    doses[:, :2] = torch.tensor(DOSES.T)
    dynamics[1, 0], doses[0, 0] = slow, dose
    return fitted(Linear(dynamics, doses), rows)


@pytest.fixture(scope="module")
def rows() -> cp.Transitions:
    return dosing_log(seed=1)


@pytest.fixture(scope="module")
def report(rows: cp.Transitions) -> CheckReport:
    return check_scm(model_of(rows), rows, outcomes=("symptom",))


def test_the_true_model_agrees_with_the_log(report: CheckReport) -> None:
    effect = report.effects[0]
    assert (effect.dose, effect.outcome, effect.verdict) == ("a", "symptom", "agrees")
    for model, step in zip(effect.model, effect.steps, strict=True):
        assert model == pytest.approx(true_effect("a", "symptom", step) * effect.contrast, rel=1e-3, abs=1e-5)
    assert all(report[name].passed for name in ("effect of a", "effect of b", "future dose"))


def test_a_wrong_sign_is_grave_and_said(rows: cp.Transitions) -> None:
    report = check_scm(model_of(rows, dose=-0.4), rows, outcomes=("symptom",))
    finding = report["effect of a"]
    assert not finding.passed
    assert finding.grave
    assert report.trust == "no"
    assert "more a on symptom after 1 step is -" in finding.sentence
    assert "do not use. To do: fit again with scm:auto" in finding.sentence
    assert report["effect of b"].passed


def test_an_effect_that_comes_late_is_missed_late(rows: cp.Transitions) -> None:
    """With the compartment's action on the symptom reversed, one step is right and two are not."""
    check = check_effects(model_of(rows, slow=-0.5), rows, ("symptom",))
    effect = next(one for one in check.comparisons if (one.dose, one.outcome) == ("a", "symptom"))
    assert effect.verdict == "wrong"
    assert effect.steps[effect.worst] == 2
    alone = check_effects(model_of(rows, slow=-0.5), rows[rows.step == 3], ("symptom",))
    assert all(finding.passed for finding in alone.findings)


def test_the_report_keeps_the_comparisons(report: CheckReport) -> None:
    again = CheckReport.from_json(json.loads(json.dumps(report.to_json())))
    assert again.effects == report.effects
    assert [one.outcome for one in report.effects] == ["symptom", "symptom"]
    damaged = report.to_json()
    damaged["effects"][0]["low"] = damaged["effects"][0]["low"][1:]
    with pytest.raises(CounterpointError, match="run check-scm again"):
        CheckReport.from_json(damaged)


def meals(caused: float, reaction: float) -> tuple[StructuralCausalModel, cp.Transitions]:
    """A log with a declared exogenous column, which the dose causes in part, and a model in which it reacts."""
    random = np.random.default_rng(0)
    state, dose = (torch.tensor(random.normal(size=(1500, width))).float() for width in (2, 1))
    noise = torch.tensor(random.normal(size=(1500, 2))).float()
    doses = torch.tensor([[0.5, caused]])
    after = 0.5 * state + dose @ doses + noise
    schema = Schema.of(("s", "meal"), cp.Box((-9.0,), (9.0,)), ("dose",), Knowledge(exogenous=("meal",)))
    rows = log_of(state, dose, after, torch.arange(1500), schema=schema)
    return fitted(Linear(torch.eye(2) * 0.5, torch.tensor([[0.5, reaction]])), rows), rows


def test_exogenous_columns_react_neither_in_the_model_nor_in_the_log() -> None:
    def findings(caused: float, reaction: float) -> dict[str, bool]:
        return {one.name: one.passed for one in check_effects(*meals(caused, reaction), ("s",)).findings}

    assert findings(0.0, 0.0)["exogenous columns"]
    assert not findings(0.0, 0.3)["exogenous columns"]
    assert not findings(0.3, 0.0)["exogenous in the log"]


def test_doses_that_follow_an_older_past_are_found() -> None:
    random = np.random.default_rng(0)
    values = torch.tensor(random.normal(size=(300, 9, 1))).float()
    dose = torch.tensor(random.normal(size=(300, 8, 1))).float()
    dose[:, 4:] += 0.9 * values[:, :4]
    tables = (part.flatten(0, 1) for part in (values[:, :-1], dose, values[:, 1:]))
    state, action, after = tables
    rows = log_of(state, action, after, torch.arange(300).repeat_interleave(8))
    findings = check_effects(fitted(Linear(torch.zeros(1, 1), torch.zeros(1, 1)), rows), rows).findings
    past = next(one for one in findings if one.name == "future dose")
    assert not past.passed
    assert "--running-sum state_0:" in past.sentence


def test_treatments_are_replayed_against_their_reference() -> None:
    random = torch.Generator().manual_seed(0)
    state, index = torch.randn(1500, 1, generator=random), torch.randint(3, (1500,), generator=random)
    action = torch.nn.functional.one_hot(index, 3).float()
    effects = torch.tensor([[0.0], [1.0], [-0.5]])
    after = 0.5 * state + action @ effects + torch.randn(1500, 1, generator=random)
    schema = Schema.of(("s",), cp.Discrete.one_hot(3), ("drug=none", "drug=x", "drug=y"))
    rows = log_of(state, action, after, torch.arange(1500), schema=schema)
    right = check_effects(fitted(Linear(torch.eye(1) * 0.5, effects), rows), rows)
    assert all(one.passed for one in right.findings)
    assert "against" in right.comparisons[0].sentence
    wrong = check_effects(fitted(Linear(torch.eye(1) * 0.5, -effects), rows), rows)
    assert not any(one.passed for one in wrong.findings if one.name.startswith("effect"))


def test_listed_doses_are_replayed_among_themselves() -> None:
    """Contrasts between levels of a list are levels of the list."""
    random = torch.Generator().manual_seed(0)
    levels = torch.tensor([0.0, 1.0, 4.0])
    action = levels[torch.randint(3, (1200, 1), generator=random)]
    state = torch.randn(1200, 1, generator=random)
    after = 0.5 * state + 0.3 * action + torch.randn(1200, 1, generator=random)
    schema = Schema.of(("s",), cp.Discrete.of([0.0, 1.0, 4.0]), ("dose",))
    listed = log_of(state, action, after, torch.arange(1200), schema=schema)
    check = check_effects(fitted(Linear(torch.eye(1) * 0.5, torch.tensor([[0.3]])), listed), listed)
    assert check.findings[0].passed
    assert check.comparisons[0].model[0] == pytest.approx(0.3 * check.comparisons[0].contrast, rel=1e-4)


def test_one_subject_has_no_comparison(rows: cp.Transitions) -> None:
    alone = replace(rows, subject=torch.zeros_like(rows.subject), episode=rows.subject, subject_names=("0",))
    check = check_effects(model_of(rows), alone)
    assert check.comparisons == ()
    assert "give more subjects" in check.findings[0].sentence
    assert not check.findings[0].passed
