"""What a fitted model says of a policy, beside what the log does."""

from collections.abc import Callable
from dataclasses import dataclass

from counterpoint.errors import CounterpointError
from counterpoint.evaluation.off_policy.case import Judging
from counterpoint.evaluation.off_policy.episodes import Episodes
from counterpoint.evaluation.off_policy.in_model import counterfactual_value, value_in_model
from counterpoint.evaluation.off_policy.member_returns import MemberReturns
from counterpoint.evaluation.off_policy.result import Estimate
from counterpoint.evaluation.off_policy.target import Stochastic
from counterpoint.model import Model
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Policy, Verdict
from counterpoint.scm.base import StructuralCausalModel
from counterpoint.seeding import derive
from counterpoint.tasks.base import Task


@dataclass(frozen=True)
class Inside:
    """Estimates inside a model, and why one is missing."""

    estimates: tuple[Estimate, ...] = ()
    notes: tuple[str, ...] = ()
    distrusted: tuple[str, ...] = ()
    """Those that rest on a model which its checks distrust."""


def inside_model(
    policy: Policy | Stochastic,
    episodes: Episodes,
    model: Model | None,
    task: Task | None,
    how: Judging,
    seed: int,
    monitor: Monitor,
    check: Verdict = Verdict(),
) -> Inside:
    """The policy simulated from the log's first states, and every record replayed with its own noise.

    A model that cannot say is no reason to hear nothing of the log: what is missing is noted.
    """
    if model is None or task is None or not isinstance(policy, Policy):
        return Inside()
    ways: dict[str, Callable[..., MemberReturns]] = {"SCM rollouts": value_in_model}
    if isinstance(model, StructuralCausalModel):
        ways["CF-PE"] = counterfactual_value
    estimates, notes = [], []
    for done, (name, way) in enumerate(ways.items()):
        monitor.report("inside the model", done, len(ways))
        try:
            found = way(episodes, policy, model, task, how.discount, seed=derive(seed, name))
            estimates.append(Estimate.of(name, found.interval(how.confidence, how.draws, derive(seed, name))))
        except CounterpointError as error:
            notes.append(f"{name}: {error}")
    monitor.report("inside the model", len(ways), len(ways))
    distrusted = tuple(each.name for each in estimates) if check.trust == "no" else ()
    return Inside(tuple(estimates), tuple(notes), distrusted)
