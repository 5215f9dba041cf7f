"""The lines that `train` prints about a policy: its rule, its checkpoint, the log's mean return, its support."""

import torch

from counterpoint.checks.support import RARE, support
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.returns import logged_returns
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.baselines.pets import PETSPolicy
from counterpoint.models.base import Model
from counterpoint.policies.base import Policy
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.policies.practice import PracticePolicy
from counterpoint.policies.searched import SearchedPolicy

SAMPLED_ROWS = 2000
"""Largest number of logged rows on which the support of a policy's actions is measured."""
FEW = 5 * (1 - RARE)
"""Share of unsupported actions above which there is a warning; of the logged actions themselves 1% would count."""


def trained_lines(policy: Policy, rows: Transitions, model: Model | None, seed: int) -> list[str]:
    """Return the lines about a policy that was learned from `rows`."""
    lines = _groups(policy, rows) if isinstance(policy, PersonalPolicy) else _rule_lines(policy)
    lines += _logged(policy, rows)
    # A planner takes milliseconds a state.
    return lines if isinstance(policy, PETSPolicy) else [*lines, _support(policy, rows, model, seed)]


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


def _logged(policy: Policy, rows: Transitions) -> list[str]:
    """Return a line about the log's mean return, over as many steps as the policy was rolled out for."""
    rolled_out = policy.policies[-1] if isinstance(policy, PersonalPolicy) else policy
    kept = rolled_out.checkpoint if isinstance(rolled_out, Policy) else None
    horizon = kept.horizon if kept else 0
    returns, steps = logged_returns(rows, horizon or None), f"the first {horizon} steps" if horizon else "all steps"
    count = f"{len(returns)} episode{'s' if len(returns) != 1 else ''}"
    return [f"mean return in the log {float(returns.mean()):.4g} ({steps} of {count})"]


def _support(policy: Policy, rows: Transitions, model: Model | None, seed: int) -> str:
    """Return a line about the share of the policy's actions that were not given to similar subjects."""
    sampled = torch.randperm(len(rows), generator=generator(seed, "support"))[:SAMPLED_ROWS]
    uses_factor = isinstance(policy, PersonalPolicy) or policy.factor_width > 0
    theta = model.subjects(rows)[sampled] if uses_factor and model is not None else NO_THETA
    sample = rows[sampled]
    share = support(sample, policy.act(sample.state, theta), rows).outside
    ends = "" if isinstance(rows.actions, Discrete) else " or about as much"
    line = f"{share:.0%} of its actions in the logged states have no support: no similar subject was given them{ends}"
    return f"warning: {line}; it leaves the log" if share > FEW else line
