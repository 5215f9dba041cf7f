"""What `train` says of a policy: its rule, the checkpoint that was kept, its return beside the log's, its support."""

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
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.policies.searched import SearchedPolicy

LOOKED_AT = 2000
"""Logged rows in which a policy's actions are looked up at most."""
FEW = 5 * (1 - RARE)
"""Share of unsupported actions above which there is a warning; of the logged actions themselves 1% would count."""


def trained_lines(policy: Policy, rows: Transitions, model: Model | None, seed: int) -> list[str]:
    """All of it, line by line."""
    lines = _groups(policy, rows) if isinstance(policy, PersonalPolicy) else _one(policy)
    lines += _logged(policy, rows)
    # A planner takes milliseconds a state.
    return lines if isinstance(policy, PETSPolicy) else [*lines, _support(policy, rows, model, seed)]


def _one(policy: Policy) -> list[str]:
    """The rule, where it can be read, and the checkpoint that was kept; a planner has neither."""
    if isinstance(policy, PETSPolicy):
        return []
    rule = policy.explain().splitlines() if isinstance(policy, SearchedPolicy) else []
    return [
        *rule,
        str(policy.checkpoint) if policy.checkpoint else "kept the last step: no model chose among the checkpoints",
    ]


def _groups(policy: PersonalPolicy, rows: Transitions) -> list[str]:
    """How many subjects each group has, with its rule and the checkpoint that was kept."""
    sizes, whole = policy.sizes(rows), rows.subject.unique().numel()
    names = [f"group {g + 1}, {size} of {whole} subjects" for g, size in enumerate(sizes)]
    lines = [f"{len(sizes)} group{'s' if len(sizes) != 1 else ''} of subjects"]
    for name, inner in zip([*names, "everybody, and subjects not known yet"], policy.policies, strict=True):
        assert isinstance(inner, Policy)
        lines += [f"{name}:", *(f"  {line}" for line in _one(inner))]
    return lines


def _logged(policy: Policy, rows: Transitions) -> list[str]:
    """The log's mean return over as many steps as the policy was tried for."""
    tried = policy.policies[-1] if isinstance(policy, PersonalPolicy) else policy
    kept = tried.checkpoint if isinstance(tried, Policy) else None
    horizon = kept.horizon if kept else 0
    returns, steps = logged_returns(rows, horizon or None), f"the first {horizon} steps" if horizon else "all steps"
    count = f"{len(returns)} episode{'s' if len(returns) != 1 else ''}"
    return [f"mean return in the log {float(returns.mean()):.4g} ({steps} of {count})"]


def _support(policy: Policy, rows: Transitions, model: Model | None, seed: int) -> str:
    """How many of its actions in logged states were not given to similar subjects."""
    picked = torch.randperm(len(rows), generator=generator(seed, "support"))[:LOOKED_AT]
    knows = isinstance(policy, PersonalPolicy) or policy.factor_width > 0
    theta = model.subjects(rows)[picked] if knows and model is not None else NO_THETA
    asked = rows[picked]
    share = support(asked, policy.act(asked.state, theta), rows).outside
    ends = "" if isinstance(rows.actions, Discrete) else " or about as much"
    said = f"{share:.0%} of its actions in the logged states have no support: no similar subject was given them{ends}"
    return f"warning: {said}; it leaves the log" if share > FEW else said
