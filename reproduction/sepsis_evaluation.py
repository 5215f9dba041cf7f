"""Evaluate policies for septic patients on held-out records and in the simulator, and check the fitted models."""

from dataclasses import replace
from typing import Any

import torch

from counterpoint.checks.assumptions import check_scm
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive, generator
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.nets.training import Monitor
from counterpoint.ope.evaluation import (
    EvaluationRequest,
    OPESettings,
    estimate_behaviours,
    evaluate_problem,
    fit_problem,
    whole_log,
)
from counterpoint.ope.model_based import ModelEstimates, returns
from counterpoint.ope.result import Evaluation
from reproduction.experiment import Rows
from reproduction.measures.counterfactual_error import questions
from reproduction.sepsis_arms import PHYSICIAN, Fitted, rows_for
from reproduction.sepsis_cohort import Split
from reproduction.tasks.sepsis import (
    SyntheticSepsis,
    physician,
    population,
)

MOST_ROWS = 5000
"""The most held-out rows whose counterfactuals are compared with the truth."""


def evaluate_policies(
    ope: OPESettings, split: Split, fitted: Fitted, seed: int, monitor: Monitor
) -> dict[str, Evaluation]:
    """Evaluate every policy on held-out records; the behaviour policy is estimated once."""
    seed = derive(seed, "judged")
    behaviours = estimate_behaviours(ope, whole_log(split.held_out, split.train), seed, monitor)
    evaluations = {}
    for name, policy in fitted.policies.items():
        rows = rows_for(name, split)
        progress = Monitor(report=monitor.report, name=f"evaluating {name}")
        problem = fit_problem(rows.held_out, policy, ope, rows.train, None, seed, progress, behaviours)
        request = EvaluationRequest(policy, ope, True, name, seed)
        evaluations[name] = evaluate_problem(problem, request, ModelEstimates(), progress)
    return evaluations


def true_values(fitted: Fitted, trials: int) -> dict[str, float]:
    """Return the mean return of every policy over the same unseen patients with the same noise, whatever the seed."""
    unseen = SyntheticSepsis(population(trials, derive(0, "unseen patients")))
    random, act = generator(0, "physician"), physician(unseen)
    actors: dict[str, Any] = {PHYSICIAN: lambda state, theta: act(state[0], random)[None]}
    for name, policy in fitted.policies.items():
        actors[name] = policy.rollout_actor()
    return {name: float(returns(actor, unseen, 1, trials, 0).mean()) for name, actor in actors.items()}


def check_models(logged: Transitions, split: Split, fitted: Fitted, task: SyntheticSepsis | None, seed: int) -> Rows:
    """Check every model on held-out patients and, where the truth is known, measure its counterfactual error.

    Args:
        logged: all rows, with the noise of the simulator where there is one.
        task: the simulator; None for a table.
    """
    lines = []
    for name, model in fitted.models.items():
        rows = rows_for(name, split)
        line = {"model": name, "recipe": type(model.structure).__name__, "factors": model.theta_width}
        line |= _checks(model, rows, seed)
        line["error"] = None if task is None else _counterfactual_error(model, task, logged, rows, seed)
        line["explained"] = {} if task is None else explained_responses(model, rows, task)
        lines.append(line)
    return lines


def _checks(model: Model, split: Split, seed: int) -> dict[str, Any]:
    """The verdict of the assumption checks; a cohort may be too small for any."""
    assert isinstance(model, StructuralCausalModel)
    try:
        report = check_scm(model, split.held_out, derive(seed, "check"))
    except CounterpointError as error:
        return {"trust": f"not checked: {error}", "failed": []}
    return {"trust": report.trust, "failed": [finding.name for finding in report.findings if not finding.passed]}


def explained_responses(model: Model, split: Split, task: SyntheticSepsis) -> dict[str, float]:
    """Return the share of the variance of held-out patients' true responses that their factors explain.

    The responses are regressed on the factors of training patients. It bounds what a policy can gain by
    personalisation. Empty for a model without factors.
    """
    if not model.theta_width:
        return {}
    fluid, vasopressor, infection = task.response
    responses = torch.stack([fluid.log(), vasopressor.log(), infection], 1).double()
    inputs, targets = [], []
    for rows in (split.train, split.held_out):
        subjects = rows.subject.unique()
        theta = model.subject_factors(rows).mean[subjects].double()
        inputs.append(torch.cat([torch.ones_like(theta[:, :1]), theta], 1))
        targets.append(responses[subjects])
    residual = targets[1] - inputs[1] @ torch.linalg.lstsq(inputs[0], targets[0]).solution
    return dict(zip(task.response._fields, (1 - residual.var(0) / targets[1].var(0)).tolist(), strict=True))


def _counterfactual_error(model: Model, task: SyntheticSepsis, logged: Transitions, split: Split, seed: int) -> float:
    """The error on held-out rows, 1 for copying what happened; factors come from each patient's whole record."""
    rows = logged[logged.has_next & torch.isin(logged.subject, split.held_out.subject.unique())]
    places = torch.randperm(len(rows), generator=generator(seed, "asked"))[:MOST_ROWS]
    asked = questions(task, rows[places], seed)
    rows = replace(rows, schema=split.train.schema)
    theta = model.subjects(rows)[places]
    answer = model.imagine(rows[places], asked.action[:, None], generator(seed, "imagine"), theta)
    return asked.yardstick.error(answer[:, 0], asked.truth)
