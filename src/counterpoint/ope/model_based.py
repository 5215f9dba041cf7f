"""What a fitted model says of a policy, beside what the log does."""

from collections.abc import Callable
from dataclasses import dataclass

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.models.base import Model
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.nets.training import Monitor
from counterpoint.ope.episodes import Episodes
from counterpoint.ope.in_model import counterfactual_value, value_in_model
from counterpoint.ope.member_returns import MemberReturns
from counterpoint.ope.problem import OPESettings
from counterpoint.ope.result import Estimate
from counterpoint.ope.target import Stochastic
from counterpoint.policies.base import Policy, Verdict
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
    how: OPESettings,
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
