"""Policies for septic patients judged: from the records of held-out patients, and by the truth where it is known."""

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
from counterpoint.ope.model_based import ModelEstimates
from counterpoint.ope.result import Evaluation
from counterpoint.ope.true_return import returns
from counterpoint.tasks.sepsis import SyntheticSepsis, physician, population
from reproduction.measures.counterfactual_error import questions
from reproduction.sepsis_arms import PERSONAL, PHYSICIAN, Fitted
from reproduction.sepsis_cohort import Split

ASKED = 5000
"""Held-out rows whose counterfactuals are compared with the truth, at most."""


def judged_policies(
    how: OPESettings, split: Split, fitted: Fitted, seed: int, monitor: Monitor
) -> dict[str, Evaluation]:
    """What the records of held-out patients say of every policy; whoever logged is estimated once."""
    own_seed, found = derive(seed, "judged"), {}
    behaviours = estimate_behaviours(how, whole_log(split.held_out, split.train), own_seed, monitor)
    for name, policy in fitted.policies.items():
        own = split.with_numbers() if name in PERSONAL else split
        watch = Monitor(report=monitor.report, name=f"judging {name}")
        case = fit_problem(own.held_out, policy, how, own.train, None, own_seed, watch, behaviours)
        found[name] = evaluate_problem(
            case, EvaluationRequest(policy, how, True, name, own_seed), ModelEstimates(), watch
        )
    return found


def true_values(fitted: Fitted, trials: int) -> dict[str, float]:
    """What every policy is worth to the same unseen patients, with the same noise for all of all seeds."""
    unseen = SyntheticSepsis(population(trials, derive(0, "unseen patients")))
    random, act = generator(0, "physician"), physician(unseen)
    actors: dict[str, Any] = {PHYSICIAN: lambda state, theta: act(state[0], random)[None]}
    for name, policy in fitted.policies.items():
        actors[name] = type(policy).together([policy])  # pyright: ignore[reportAttributeAccessIssue]
    return {name: float(returns(actor, unseen, 1, trials, 0).mean()) for name, actor in actors.items()}


def examined(
    logged: Transitions, split: Split, fitted: Fitted, task: SyntheticSepsis | None, seed: int
) -> list[dict[str, Any]]:
    """What the checks say of either model on held-out patients and, where the truth is known, how far its
    counterfactuals are from it; `logged` are the rows with a simulator's noise."""
    found = []
    for name, model in fitted.models.items():
        own = split.with_numbers() if name in PERSONAL else split
        error = None if task is None else counterfactual_error_of(model, task, logged, own, seed)
        about = {"model": name, "recipe": type(model.recipe).__name__, "factors": model.theta_width}
        known = {} if task is None else responses_known(model, own, task)
        found.append({**about, **_checked(model, own, seed), "error": error, "known": known})
    return found


def _checked(model: Model, split: Split, seed: int) -> dict[str, Any]:
    """The checks' verdict; a cohort may be too small for any."""
    assert isinstance(model, StructuralCausalModel)
    try:
        said = check_scm(model, split.held_out, derive(seed, "check"))
    except CounterpointError as error:
        return {"trust": f"not checked: {error}", "failed": []}
    return {"trust": said.trust, "failed": [each.name for each in said.findings if not each.passed]}


def responses_known(model: Model, split: Split, task: SyntheticSepsis) -> dict[str, float]:
    """Share of the variance of held-out patients' true responses that their factors explain, by a regression on
    training patients: what there is to personalise by. Empty for a model without factors."""
    if not model.theta_width:
        return {}
    fluid, vasopressor, infection = task.response
    truth = torch.stack([fluid.log(), vasopressor.log(), infection], 1).double()
    parts = []
    for rows in (split.train, split.held_out):
        own = rows.subject.unique()
        theta = model.subject_factors(rows).mean[own].double()
        parts.append((torch.cat([torch.ones_like(theta[:, :1]), theta], 1), truth[own]))
    (told, known), (asked, answer) = parts
    rest = answer - asked @ torch.linalg.lstsq(told, known).solution
    return dict(zip(task.response._fields, (1 - rest.var(0) / answer.var(0)).tolist(), strict=True))


def counterfactual_error_of(model: Model, task: SyntheticSepsis, logged: Transitions, split: Split, seed: int) -> float:
    """Of held-out rows, 1 for copying what happened; what is known of a patient comes from the whole record."""
    rows = logged[logged.has_next & torch.isin(logged.subject, split.held_out.subject.unique())]
    some = torch.randperm(len(rows), generator=generator(seed, "asked"))[:ASKED]
    asked, own = questions(task, rows[some], seed), replace(rows, schema=split.train.schema)
    theta = model.subjects(own)[some]
    answer = model.imagine(own[some], asked.action[:, None], generator(seed, "imagine"), theta)
    return asked.yardstick.error(answer[:, 0], asked.truth)
