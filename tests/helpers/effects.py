"""Subjects that differ, simulated: linear mixed effects with known numbers, and models whose law is set by hand."""

from collections.abc import Sequence

import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Job, Origin
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.effects.changes import Change
from counterpoint.nets.training import Schedule

DOSES = cp.Box((-2.0,), (2.0,))
MEAN = torch.tensor([[0.3, -0.2], [-0.4, 0.1], [0.2, -0.3], [0.5, 0.8]])
"""M of the intercept, two state columns and the dose."""
NOISE = torch.tensor([[0.09, 0.03], [0.03, 0.04]])
EFFECT = torch.zeros(4, 2, 2)
"""B: the first factor bends what the dose does, the second what either column does by itself."""
EFFECT[3, :, 0] = torch.tensor([0.6, -0.4])
EFFECT[0, :, 1] = torch.tensor([0.3, 0.5])
BRIEF = Schedule(steps=40, check_every=20, patience=1)
RECIPE = cp.RandomEffects(factors=1, ensemble=2, hidden=(4,), schedule=BRIEF)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logged(state: Tensor, action: Tensor, after: Tensor, subject: Tensor, **more: object) -> cp.Transitions:
    """Rows of one episode a subject, in the order given."""
    flags = torch.zeros(len(state), dtype=torch.bool)
    step = torch.zeros(len(state), dtype=torch.long)
    for own in subject.unique():
        step[subject == own] = torch.arange(int((subject == own).sum()))
    given = {"state": state, "action": action, "next_state": after, "subject": subject, "step": step}
    given |= {"reward": after[:, 0], "terminated": flags, "truncated": flags, "actions": DOSES} | more
    return cp.Transitions.logged(**given)  # pyright: ignore[reportArgumentType]


def linear_rows(theta: Tensor, steps: int, seed: int, effect: Tensor = EFFECT) -> cp.Transitions:
    """y = x·(M + B·θ) + e for every subject of `theta`, from states and doses drawn anew in each row."""
    random = generator(seed)
    subject = torch.arange(len(theta)).repeat_interleave(steps)
    state, action = (torch.randn(len(subject), width, generator=random) for width in (2, 1))
    action = action.clamp(-2, 2)
    line = torch.cat([torch.ones(len(subject), 1), state, action], 1)
    own = MEAN + (effect[..., : theta.shape[1]] @ theta[:, None, :, None])[..., 0]
    noise = torch.randn(len(subject), 2, generator=random) @ torch.linalg.cholesky(NOISE).T
    y = (line[:, None] @ own[subject])[:, 0] + noise
    return logged(state, action, state + y, subject)


def responders(response: Tensor, steps: int, seed: int, deviation: float = 0.5) -> cp.Transitions:
    """s' = s + response·a + noise, a response for each subject."""
    random = generator(seed)
    subject = torch.arange(len(response)).repeat_interleave(steps)
    state, action, luck = (torch.randn(len(subject), 1, generator=random) for _ in range(3))
    action = action.clamp(-2, 2)
    return logged(state, action, state + response[subject][:, None] * action + deviation * luck, subject)


def by_hand(effect: Sequence[Sequence[float]], deviation: float, rows: cp.Transitions) -> StructuralCausalModel:
    """One member of s' = s + Σ_r θ_r·(effect[r]·(1, s, a)) + deviation·u, one state column."""
    changes: tuple[Change, ...] = ("difference",)
    recipe = cp.RandomEffects(len(effect), changes, ensemble=1, hidden=(2,), layout=cp.models.EquationForm(changes))
    mechanism = recipe.build(1, 2 + len(effect), 1)
    with torch.no_grad():
        mechanism.law.effect.copy_(torch.tensor(effect).T[None])
        mechanism.law.corner.fill_(deviation).log_()
        mechanism.law.silence(torch.ones(1, dtype=torch.bool))
    return StructuralCausalModel(recipe, mechanism, rows.schema, Origin.of(Job(rows)), rows.row_hashes)
