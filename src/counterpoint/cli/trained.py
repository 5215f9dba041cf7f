"""The lines that `train` prints about a policy: its rule, its checkpoint, its mean return and practice's inside the
model beside the log's, its support."""

import torch

from counterpoint.checks.support import RARE, support
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive, generator
from counterpoint.core.wording import counted
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.returns import logged_returns
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.baselines.pets import PETSPolicy
from counterpoint.learners.practice import baseline_practice, practice_name
from counterpoint.models.base import Model
from counterpoint.ope.model_based import value_in_model
from counterpoint.ope.problem import Episodes
from counterpoint.policies.base import Policy
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.policies.practice import PracticePolicy
from counterpoint.policies.searched import SearchedPolicy
from counterpoint.tasks.base import Task

SAMPLED_ROWS = 2000
"""Largest number of logged rows on which the support of a policy's actions is measured."""
FEW = 5 * (1 - RARE)
"""Share of unsupported actions above which there is a warning; of the logged actions themselves 1% would count."""
MOST_UNSUPPORTED = 0.5
"""Share of unsupported actions above which nothing in the log speaks for the policy."""
MAX_EPISODES = 200
"""Largest number of logged episodes from whose first states a policy is tried inside the model."""
MAX_STEPS = 200
"""Largest number of steps of these episodes."""


def trained_lines(
    policy: Policy,
    rows: Transitions,
    model: Model | None,
    seed: int,
    simulator: Model | None = None,
    task: Task | None = None,
) -> list[str]:
    """Return the lines about a policy that was learned.

    Args:
        policy: The policy.
        rows: The rows that it was learned from.
        model: The model that infers the subjects' factors, where the policy is conditioned on them.
        seed: Seed of the sample of rows and of the simulated episodes.
        simulator: A fitted model in which the policy and practice are tried, with `task`; None for none.
        task: Reward and end of the simulated episodes.
    """
    lines = _groups(policy, rows) if isinstance(policy, PersonalPolicy) else _rule_lines(policy)
    horizon = _horizon(policy)
    lines.append(_logged(rows, horizon))
    if isinstance(policy, PETSPolicy):
        return lines  # A planner takes milliseconds a state.
    if simulator is not None and task is not None:
        lines.append(_in_model(policy, rows, simulator, task, horizon, seed))
    return [*lines, _support(policy, rows, model, seed)]


def _rule_lines(policy: Policy) -> list[str]:
    """Return the rule, where it can be read, and the selected checkpoint; a planner has neither."""
    if isinstance(policy, PETSPolicy):
        return []
    if isinstance(policy, PracticePolicy | NearPracticePolicy):
        return policy.explain().splitlines()
    rule = policy.explain().splitlines() if isinstance(policy, SearchedPolicy) else []
    last = "kept the last step: no model chose among the checkpoints"
    return [*rule, str(policy.checkpoint or last)]


def _groups(policy: PersonalPolicy, rows: Transitions) -> list[str]:
    """Return the number of subjects in every group, with its rule and selected checkpoint."""
    sizes, whole = policy.sizes(rows), rows.subject.unique().numel()
    names = [f"group {g + 1}, {size} of {whole} subjects" for g, size in enumerate(sizes)]
    lines = [f"{len(sizes)} group{'s' if len(sizes) != 1 else ''} of subjects"]
    for name, inner in zip([*names, "everybody, and subjects not known yet"], policy.policies, strict=True):
        assert isinstance(inner, Policy)
        lines += [f"{name}:", *(f"  {line}" for line in _rule_lines(inner))]
    return lines


def _horizon(policy: Policy) -> int:
    """Return the steps that the policy was rolled out for when it was selected; 0 where it was not."""
    rolled_out = policy.policies[-1] if isinstance(policy, PersonalPolicy) else policy
    kept = rolled_out.checkpoint if isinstance(rolled_out, Policy) else None
    return kept.horizon if kept else 0


def _logged(rows: Transitions, horizon: int) -> str:
    """Return a line about the log's mean return, over as many steps as the policy was rolled out for."""
    returns, steps = logged_returns(rows, horizon or None), f"the first {horizon} steps" if horizon else "all steps"
    return f"mean return in the log {float(returns.mean()):.4g} ({steps} of {counted(len(returns), 'episode')})"


def _in_model(policy: Policy, rows: Transitions, model: Model, task: Task, horizon: int, seed: int) -> str:
    """Return a line about the mean returns of the policy and of practice inside the model, from the same first states
    under the same noise."""
    try:
        episodes = _first_states(rows.real, horizon, derive(seed, "first states"))
        value = value_in_model(episodes, policy, model, task, rollouts=1, seed=seed).value
        practice = _practice(policy, rows, seed)
        if practice is None or practice is policy:
            compared = ""
        else:
            of_practice = value_in_model(episodes, practice, model, task, rollouts=1, seed=seed).value
            compared = f", {_acting(practice, rows)} there {of_practice:.4g}"
    except CounterpointError as error:
        return f"no mean return inside the model: {error}"
    steps, starts = counted(episodes.places.shape[1], "step"), counted(len(episodes), "record")
    return f"mean return inside the model {value:.4g}{compared} ({steps} from the first states of {starts}, same noise)"


def _first_states(rows: Transitions, horizon: int, seed: int) -> Episodes:
    """Return a sample of the logged episodes, as long as they are simulated."""
    episodes = Episodes.of(rows)
    picked = torch.randperm(len(episodes), generator=generator(seed, "episodes"))[:MAX_EPISODES].sort().values
    steps = min(horizon or episodes.places.shape[1], MAX_STEPS)
    places = episodes.places[picked, :steps]
    places = torch.nn.functional.pad(places, (0, steps - places.shape[1]), value=-1)
    return Episodes(rows, places, episodes.length[picked].clamp(max=steps))


def _practice(policy: Policy, rows: Transitions, seed: int) -> PracticePolicy | None:
    """Return practice that acts as in the log: listed actions are drawn, but for a policy near it that draws none."""
    if isinstance(policy, PracticePolicy):
        return policy
    practice = policy.practice if isinstance(policy, NearPracticePolicy) else baseline_practice(rows, seed)
    draws = isinstance(rows.actions, Discrete) and not (isinstance(policy, NearPracticePolicy) and not policy.drawn)
    return practice.drawn() if practice is not None and draws else practice


def _acting(practice: PracticePolicy, rows: Transitions) -> str:
    return "practice (drawn actions)" if practice.stochastic else practice_name(rows)


def _support(policy: Policy, rows: Transitions, model: Model | None, seed: int) -> str:
    """Return a line about the share of the policy's actions that were not given to similar subjects."""
    sampled = torch.randperm(len(rows), generator=generator(seed, "support"))[:SAMPLED_ROWS]
    uses_factor = isinstance(policy, PersonalPolicy) or policy.factor_width > 0
    theta = model.subjects(rows)[sampled] if uses_factor and model is not None else NO_THETA
    sample = rows[sampled]
    share = support(sample, policy.act(sample.state, theta), rows).outside
    ends = "" if isinstance(rows.actions, Discrete) else " or about as much"
    line = f"{share:.0%} of its actions in the logged states have no support: no similar subject was given them{ends}"
    if share > MOST_UNSUPPORTED:
        return f"warning: {line}; for most of what it does the log has no evidence, so do not act by it"
    return f"warning: {line}; it leaves the log" if share > FEW else line
