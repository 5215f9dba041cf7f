"""A log of doses given for symptoms: a partially linear process whose effects over several steps are known.

    y' = .3y + .5d + .2a − .1b + sin 2z₁ + e,    d' = .5d + .3a + e',    a ~ tanh(1.5y) + .3y·z₁ + .3a₋₁,
    b ~ max(z₂ + .5y, 0)

y is the symptom, d a slow compartment that a fills, and both doses follow the symptom, so that a regression on
the dose alone takes the reason for the effect.
"""

import numpy as np
import torch

import counterpoint as cp

DYNAMICS = np.array([[0.3, 0.5], [0.0, 0.5]])
DOSES = np.array([[0.2, -0.1], [0.3, 0.0]])
OUTCOMES = ("symptom", "compartment")


def true_effect(dose: str, outcome: str, step: int) -> float:
    """The effect of one unit of `a` or `b` after some steps, later doses held."""
    effect = np.linalg.matrix_power(DYNAMICS, step - 1) @ DOSES
    return float(effect[OUTCOMES.index(outcome), ("a", "b").index(dose)])


def dosing_log(subjects: int = 250, steps: int = 8, seed: int = 0, spread: float = 0.5) -> cp.Transitions:
    """A log of so many subjects; `spread` is the standard deviation of the doses given the history."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape)

    symptom, compartment, context, earlier = (
        normal(subjects),
        np.zeros(subjects),
        normal(subjects, 2),
        np.zeros(subjects),
    )
    state, action, after = [], [], []
    for _ in range(steps):
        wanted = np.tanh(1.5 * symptom) + 0.3 * symptom * context[:, 0] + 0.3 * earlier
        first = wanted + spread * normal(subjects)
        second = np.maximum(context[:, 1] + 0.5 * symptom + spread * normal(subjects), 0)
        state.append(np.c_[symptom, compartment, context])
        action.append(np.c_[first, second])
        moved = np.stack([symptom, compartment], 1) @ DYNAMICS.T + action[-1] @ DOSES.T
        symptom = moved[:, 0] + np.sin(2 * context[:, 0]) + normal(subjects)
        compartment, earlier = moved[:, 1] + 0.1 * normal(subjects), first
        context = 0.8 * context + 0.6 * normal(subjects, 2)
        after.append(np.c_[symptom, compartment, context])
    subject = torch.arange(subjects).repeat_interleave(steps)
    names = (*OUTCOMES, "z1", "z2")
    before, given, following = (
        torch.tensor(np.stack(table, 1).reshape(subjects * steps, -1)).float() for table in (state, action, after)
    )
    return log_of(before, given, following, subject, state_names=names, action_names=("a", "b"))


def log_of(
    state: torch.Tensor, action: torch.Tensor, after: torch.Tensor, subject: torch.Tensor, **more: object
) -> cp.Transitions:
    """Rows of one episode a subject, in order, without reward; doses lie between −20 and 20 unless `actions` says."""
    lengths = torch.unique_consecutive(subject, return_counts=True)[1]
    step = torch.cat([torch.arange(int(length)) for length in lengths])
    flags = torch.zeros(len(state), dtype=torch.bool)
    width = action.shape[1]
    box = cp.Box((-20.0,) * width, (20.0,) * width)
    given = {"state": state, "action": action, "next_state": after, "subject": subject, "step": step}
    given |= {"reward": flags.float(), "terminated": flags, "truncated": flags}
    given |= more if "schema" in more else {"actions": box} | more
    return cp.Transitions.logged(**given)  # pyright: ignore[reportArgumentType]
