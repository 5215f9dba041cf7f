"""The functions behind a learned task: the reward's network, the hazards' softmaxes and their intercepts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.data.shapes import Reward
from counterpoint.models.dynamics.base import LawNetwork, OutputLaw
from counterpoint.models.dynamics.deterministic import PointLaw
from counterpoint.nets.likelihood import held_out_last
from counterpoint.nets.stacked import StackedLinear

PENALTIES = (1.0, 10.0, 100.0, 1000.0)
"""Ridges of logistic regression that are tried, in rows; 1 is scikit-learn's."""
ROUNDS = 40
"""Rounds in which the intercepts are set."""
LEAST = 1e-6
"""Probability that anything has at least when a regression is scored."""
BEFORE, AFTER, REWARD = "before", "after", "reward"


@dataclass(frozen=True)
class ClassLaw(OutputLaw):
    """One of several classes; y holds its number."""

    classes: int

    def width(self, size: int) -> int:
        return self.classes

    def log_prob(self, raw: Float[Tensor, "*n w"], y: Float[Tensor, "*n d"]) -> Reward:
        return raw.log_softmax(-1).gather(-1, y.long())[..., 0]

    def chance(self, shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n c"]:
        return torch.rand(*shape, size, generator=random, device=random.device)

    def sample(self, raw: Float[Tensor, "*n w"], chance: Float[Tensor, "*n c"], size: int) -> Float[Tensor, "*n d"]:
        return pick(raw.softmax(-1), chance[..., 0])[..., None].to(raw)

    def unit(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """A number of a class stays what it is."""
        return torch.zeros_like(mean), torch.ones_like(scale)


def pick(probability: Float[Tensor, "*n c"], uniform: Float[Tensor, "*n"]) -> Tensor:
    """The class that a uniform draw falls on; the last one takes what rounding leaves."""
    return (uniform[..., None] >= probability.cumsum(-1)[..., :-1]).sum(-1)


def network(name: str, members: int, state: int, action: int, outcomes: int, hidden: Sequence[int]) -> LawNetwork:
    """One of the functions, of so many jobs."""
    inputs = {REWARD: 2 * state + action + outcomes, BEFORE: state + action, AFTER: 2 * state + action}[name]
    head = PointLaw() if name == REWARD else ClassLaw(1 + outcomes)
    return LawNetwork(members, inputs, 1, head, hidden, batch_norm=False)


class OutcomeNetworks(nn.Module):
    """The learned functions of one job: reward, two hazards and their intercepts, and the reward of ends without s'."""

    before_intercept: Tensor
    after_intercept: Tensor
    end_weight: Tensor
    end_bias: Tensor

    def __init__(self, reward: LawNetwork, hazards: Mapping[str, LawNetwork]) -> None:
        super().__init__()
        self.reward, self.before, self.after = reward, hazards[BEFORE], hazards[AFTER]
        outcomes, inputs = self.before.head.width(1) - 1, self.before.context.mean.shape[-1]
        for name in (BEFORE, AFTER):
            never = torch.cat([torch.zeros(1, 1), torch.full((1, outcomes), -torch.inf)], 1)
            self.register_buffer(f"{name}_intercept", never)
        self.register_buffer("end_weight", torch.zeros(1, outcomes, inputs))
        self.register_buffer("end_bias", torch.zeros(1, outcomes))

    def logits(self, name: str, inputs: Float[Tensor, "k n c"]) -> Float[Tensor, "k n w"]:
        """A hazard's logits with its intercepts."""
        return getattr(self, name).raw(inputs) + getattr(self, f"{name}_intercept")[:, None]

    def linear(self, name: str) -> bool:
        """Whether a hazard is logistic regression."""
        return len(getattr(self, name).net.layers) == 1


@torch.no_grad()
def set_intercepts(heads: OutcomeNetworks, tables: dict[str, dict[str, Tensor]]) -> None:
    """Every outcome is to be foreseen as often as it is seen; one that never is has the intercept −∞."""
    for name in (BEFORE, AFTER):
        network, intercept = getattr(heads, name), getattr(heads, f"{name}_intercept")
        seen = torch.bincount(tables[name]["y"][:, 0].long(), minlength=intercept.shape[1]).double()
        inputs = tables[name]["context"].to(intercept.device)[None]
        intercept[0] = calibrated(network.raw(inputs)[0].double().cpu(), seen).to(intercept)


def calibrated(raw: Float[Tensor, "n c"], seen: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """The b with Σ softmax(raw + b) = seen: a few rounds of b + log(seen / foreseen), then Newton's."""
    possible = seen > 0
    raw, seen, moved = raw[:, possible], seen[possible], torch.zeros(int(possible.sum()), dtype=raw.dtype)
    for i in range(ROUNDS):
        chance = (raw + moved).softmax(-1)
        foreseen = chance.sum(0)
        if i < ROUNDS // 2:
            moved = moved + (seen / foreseen).log()
        else:
            slope = foreseen.diag() - chance.T @ chance + 1e-9 * torch.eye(len(moved), dtype=raw.dtype)
            moved = moved + torch.linalg.lstsq(slope, (seen - foreseen)[:, None], driver="gelsd").solution[:, 0].clamp(
                -1, 1
            )
    return torch.full(possible.shape, -torch.inf, dtype=raw.dtype).masked_scatter(possible, moved - moved.max())


def logistic(table: Mapping[str, Tensor], seed: int, held_out: float, empty: LawNetwork) -> tuple[LawNetwork, float]:
    """`empty` with the weights of logistic regression on all rows, and its loss on the held-out subjects on whom the
    ridge was chosen. Rows of one class leave it as it is; where nothing is held out, the weakest ridge is taken, and
    the loss says nothing."""
    context, subject = table["context"].double().cpu(), table["subject"].cpu()
    y = table["y"][:, 0].long().cpu().numpy()
    if len(np.unique(y)) < 2:
        return empty, nan
    mean, spread = context.mean(0), context.std(0)
    scale = torch.where(spread > 0, spread, 1.0)
    x = ((context - mean) / scale).numpy()
    order, kept = held_out_last(subject, held_out, seed)
    learned, aside = order[:kept].numpy(), order[kept:].numpy()
    losses = [_loss(_regression(x[learned], y[learned], penalty), x[aside], y[aside]) for penalty in PENALTIES]
    best = 0 if np.isnan(losses).all() else int(np.nanargmin(losses))
    return _filled(empty, _regression(x, y, PENALTIES[best]), mean, scale), losses[best]


def _regression(x: np.ndarray, y: np.ndarray, penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1 / penalty, max_iter=200, tol=1e-3).fit(x, y) if len(np.unique(y)) > 1 else None


def _loss(model: Any, x: np.ndarray, y: np.ndarray) -> float:
    """Minus the mean log probability of what happened; none where nothing is held out or nothing was learned."""
    if model is None or not len(x):
        return nan
    chance = np.full((len(x), max(model.classes_.max(), y.max()) + 1), LEAST)
    chance[:, model.classes_] = model.predict_proba(x)
    return float(-np.log(chance[np.arange(len(y)), y].clip(LEAST)).mean())


@torch.no_grad()
def _filled(empty: LawNetwork, model: Any, mean: Tensor, scale: Tensor) -> LawNetwork:
    """scikit-learn gives two classes one line between them."""
    line, start = (torch.from_numpy(np.atleast_1d(part)) for part in (model.coef_, model.intercept_))
    if len(model.classes_) == 2:
        line, start = torch.cat([-line, line]) / 2, torch.cat([-start, start]) / 2
    only = empty.net.layers[0]
    assert isinstance(only, StackedLinear)
    only.weight.zero_()
    only.bias.zero_()
    only.weight[0, ..., model.classes_] = line.T.to(only.weight)
    only.bias[0, ..., model.classes_] = start.to(only.bias)
    empty.context.take(mean[None, None].to(only.weight), scale[None, None].to(only.weight))
    return empty.eval()
