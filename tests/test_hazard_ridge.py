"""The ridge of a logistic hazard is chosen on held-out subjects."""

import math

import torch

from counterpoint.models.dynamics.base import LawNetwork
from counterpoint.models.dynamics.hazards import (
    ClassLaw,
    logistic,
)


def test_noise_is_given_the_strongest_ridge_because_held_out_subjects_decide() -> None:
    """Ends that no column foretells: on its own rows the weakest ridge looks best, by far; on held-out subjects nothing
    beats the share of ends, one half, whose loss is log 2."""
    context = torch.randn(80, 30, generator=torch.Generator().manual_seed(0))
    table = {"context": context, "y": (torch.arange(80) % 2)[:, None], "subject": torch.arange(80)}
    fitted, loss = logistic(table, 0, 0.25, LawNetwork(1, 30, 1, ClassLaw(2), (), batch_norm=False))
    probability = fitted.raw(context[None])[0].softmax(-1)
    assert (probability - 0.5).abs().max() < 0.1
    assert abs(loss - math.log(2)) < 0.05
