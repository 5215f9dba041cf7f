"""Learning and evaluation that experiments have in common: policies of shared models, and their true returns.

Models that several methods learn with are fitted by the first cell that needs them, and stored. Learners with the same
model recipe fit the same models on the same jobs, so the rows do not depend on which cell fitted them.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import device_of, write_text
from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Job
from counterpoint.learners.base import ModelBased, PolicyCheckpoints, PolicyLearner
from counterpoint.models.base import Model
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Policy
from counterpoint.registry import load
from counterpoint.tasks.base import Task
from reproduction.experiment import Context, exclusive, recipe_key


def learn(
    learner: PolicyLearner, jobs: Sequence[Job], task: Task, context: Context, data: Any, stage: str
) -> list[PolicyCheckpoints]:
    """Learn the policy of every job, with shared models where the learner fits models first.

    Args:
        learner: The method.
        jobs: Logs and training seeds.
        task: Reward and end of the logs.
        context: The cell's; models lie in its shared folder.
        data: What defines `jobs`: models are shared by cells that have it in common.
        stage: Name of the training in progress and checkpoints.
    """
    monitor = context.monitor.stage(stage)
    if not isinstance(learner, ModelBased):
        return learner.fit_many(jobs, task, monitor, context.device)
    learner.check(jobs, task)
    models = shared_models(learner, jobs, context, data)
    return learner.with_models(jobs, models, task, monitor)


def shared_models(learner: ModelBased, jobs: Sequence[Job], context: Context, data: Any) -> list[Model]:
    """The stored models of `jobs`; fitted and stored where there are none. Other cells wait meanwhile."""
    key = recipe_key(learn, [learner.model, data])
    place = context.shared / "models" / f"{key}-{device_of(context.device).type}"
    with exclusive(place):
        models = _stored(place, len(jobs), context.device)
        if models is None:
            checkpoints = place / "checkpoints"
            monitor = Monitor(checkpoints, True, context.report, "models", context.monitor.save_seconds)
            models = learner.fit_models(jobs, monitor, context.device)
            for number, model in enumerate(models):
                model.save(place / str(number))
            write_text(place / "complete", str(len(models)))
            shutil.rmtree(checkpoints, ignore_errors=True)
    return models


def evaluate_both(
    learned: Sequence[PolicyCheckpoints], mean_returns: Callable[[Sequence[Policy]], list[float]]
) -> list[dict[str, float | None]]:
    """The returns of every policy's selected and last checkpoint, and its return in its own model where it has one."""
    selected = mean_returns([policies.selected for policies in learned])
    same = all(policies.selected is policies.last for policies in learned)
    last = selected if same else mean_returns([policies.last for policies in learned])
    in_model = [getattr(policies.selected, "return_in_model", None) for policies in learned]
    return [
        {"return_selected": selected[place], "return_last": last[place], "return_in_model": in_model[place]}
        for place in range(len(learned))
    ]


def _stored(place: Path, count: int, device: str) -> list[Model] | None:
    """The stored models; None where they are not complete or damaged."""
    if not (place / "complete").exists():
        return None
    try:
        models: list[Any] = [load(place / str(number)) for number in range(count)]
    except CounterpointError:
        return None
    for model in models:
        model.mechanism.to(device_of(device))
    return models
