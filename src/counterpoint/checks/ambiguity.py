"""How far the data leave the counterfactual open: members that disagree, and noises that change places.

Turning: with independent standard normal noises, s' = f(s, a, R(a)·u) has for every rotation R(a) the same law as
s' = f(s, a, u), and other counterfactuals. No data can tell the two apart, so for a state of several columns the answer
rests on the assumption that each column keeps a noise of its own; the distance between the two answers says how much
rests on it. A state with fewer than two normal noises has nothing to turn: one of one column (Theorem 1), or of codes.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.checks.findings import CheckSample, Finding

AGREEMENT = 0.25
"""Spread between the members' answers, in standard deviations of the effect, that is still agreement."""
TURNING = 0.3
"""Distance between answers with own and with turned noises, in the same unit, that nobody need vouch for."""


def agreement(sample: CheckSample) -> Finding:
    """Spread between the ensemble members' counterfactuals, in standard deviations of the effect."""
    answers = sample.member_counterfactuals()
    value = _relative(answers - answers.mean(0), sample, answers.mean(0)) if len(answers) > 1 else 0.0
    passed = value <= AGREEMENT
    sentence = (
        "The ensemble has one member, so its members cannot disagree; fit several to learn how sure it is."
        if len(answers) == 1
        else f"Models fitted alike {'agree' if passed else 'disagree'} on what another action would do:"
        f" their answers differ by {value:.0%} of the effect."
    )
    return Finding("agreement", value, AGREEMENT, passed, sentence, grave=False)


def turning(sample: CheckSample) -> Finding:
    """How much rests on each column keeping its own noise: distance to an SCM of the same law whose noises turn."""
    if _normal(sample) < 2:
        sentence = "Nothing can turn: fewer than two state columns are continuous, so no two can swap their chances."
        return Finding("own noise", 0.0, TURNING, True, sentence, grave=False)
    answers, turned = sample.member_counterfactuals(), sample.predict(sample.alternative, turned_noise(sample))
    value = _relative(answers - turned, sample, turned.mean(0))
    passed = value <= TURNING
    sentence = (
        f"That each state column keeps its own exogenous noise under every action cannot be tested with any data;"
        f" were it false, answers could be off by {value:.0%} of the effect"
        + ("." if passed else ", so somebody who knows the subject must vouch for it.")
    )
    return Finding("own noise", value, TURNING, passed, sentence, grave=False)


def turned_noise(sample: CheckSample) -> Float[Tensor, "m n u"]:
    """R(a')·R(a)ᵀ·u: pairs of normal noises turned by a difference of angles, half a turn across the action space.

    Correlated noises are turned among their principal axes, which keeps their joint law.
    """
    noise, other = sample.abducted().tensor_split([_normal(sample)], -1)
    angle = _angle(sample, sample.alternative) - _angle(sample, sample.rows.action)
    root = _root(noise)
    axes = torch.linalg.solve(root, noise.mT).mT
    width = noise.shape[-1] // 2 * 2
    first, second, cosine, sine = axes[..., :width:2], axes[..., 1:width:2], angle.cos(), angle.sin()
    pairs = torch.stack([cosine * first - sine * second, sine * first + cosine * second], -1).flatten(-2)
    return torch.cat([torch.cat([pairs, axes[..., width:]], -1) @ root.mT, other], -1)


def _normal(sample: CheckSample) -> int:
    """How many noises are standard normal; they come first, and the others (Gumbel) keep no law when turned."""
    return sample.model.mechanism.normal_noise


def _relative(difference: Tensor, sample: CheckSample, counterfactual: Tensor) -> float:
    """Root mean square over members, rows and columns, each column in standard deviations of its effect."""
    return float((difference / sample.effect_scale(counterfactual)).square().mean().sqrt())


def _angle(sample: CheckSample, action: Float[Tensor, "n a"]) -> Float[Tensor, "n 1"]:
    """From 0 to π across the action space; the columns weigh differently, so that unordered treatments differ too."""
    space = sample.model.actions
    low, high = action.new_tensor(space.low), action.new_tensor(space.high)
    weight = torch.arange(1, space.width + 1).to(action)
    position = (action - low) / (high - low).clamp(min=1e-12)
    return torch.pi * (position * weight).sum(1, keepdim=True) / weight.sum()


def _root(noise: Float[Tensor, "m n u"]) -> Float[Tensor, "m u u"]:
    """The symmetric square root of the noises' covariance."""
    centred = noise - noise.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(centred.mT @ centred / noise.shape[1])
    return (vectors * values.clamp(min=1e-6).sqrt()[:, None]) @ vectors.mT
