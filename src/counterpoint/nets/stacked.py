"""K independent networks as one: every layer carries a leading axis of K members, y_k = x_k W_k + b_k.

The same axis serves ensembles, the seeds of a grid and the groups of subjects. A member's initial weights depend on its
own seed alone, so a member trains the same whether it stands alone or beside others.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from counterpoint.core.seeding import generator


class StackedLinear(nn.Module):
    """K linear maps."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(members, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x: Float[Tensor, "k n i"]) -> Float[Tensor, "k n o"]:
        return torch.baddbmm(self.bias, x, self.weight)

    def columns(self, x: Float[Tensor, "k i n"]) -> Float[Tensor, "k o n"]:
        """The same of rows that stand side by side: every output is contiguous in memory."""
        return torch.baddbmm(self.bias.mT, self.weight.mT, x)

    @torch.no_grad()
    def initialise(self, member: int, random: torch.Generator) -> None:
        """Uniform in ±1/√inputs, as torch's own linear layer."""
        bound = self.weight.shape[1] ** -0.5 if self.weight.shape[1] else 0.0
        for parameter in (self.weight, self.bias):
            draw = torch.rand(parameter.shape[1:], generator=random)
            parameter[member] = (2 * draw - 1) * bound


class StackedBatchNorm(nn.Module):
    """Batch normalisation of each member over its own rows; running statistics when not training."""

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, members: int, width: int, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))
        self.register_buffer("running_mean", torch.zeros(members, 1, width))
        self.register_buffer("running_variance", torch.ones(members, 1, width))

    def forward(self, x: Float[Tensor, "k n w"]) -> Float[Tensor, "k n w"]:
        if self.training:
            variance, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                unbiased = variance * (x.shape[1] / max(x.shape[1] - 1, 1))
                self.running_variance.lerp_(unbiased, self.momentum)
        else:
            mean, variance = self.running_mean, self.running_variance
        return (x - mean) * torch.rsqrt(variance + self.epsilon) * self.weight + self.bias


class StackedMLP(nn.Module):
    """K multilayer perceptrons; with `batch_norm` every hidden layer is linear + batch norm + activation (paper, E)."""

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: type[nn.Module] = nn.SiLU,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden, outputs]
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(pairwise(widths)):
            layers.append(StackedLinear(members, before, after))
            if i < len(hidden):
                layers += [StackedBatchNorm(members, after)] if batch_norm else []
                layers.append(activation())
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Float[Tensor, "k n i"]) -> Float[Tensor, "k n o"]:
        return self.layers(x)

    def columns(self, x: Float[Tensor, "k i n"]) -> Float[Tensor, "k o n"]:
        """The same of rows that stand side by side; without batch norm."""
        for layer in self.layers:
            x = layer.columns(x) if isinstance(layer, StackedLinear) else layer(x)
        return x


def initialise(network: nn.Module, seeds: Sequence[int]) -> None:
    """Give member k of every layer its initial weights from `seeds[k]`."""
    layers = [layer for layer in network.modules() if hasattr(layer, "initialise")]
    for member, seed in enumerate(seeds):
        random = generator(seed, "weights")
        for layer in layers:
            layer.initialise(member, random)  # pyright: ignore[reportCallIssue]


def per_member(values: Shaped[Tensor, " k"], tensor: Tensor) -> Tensor:
    """One value a member, shaped to broadcast over a stacked tensor (which may hold several networks a member)."""
    spread = values.repeat_interleave(tensor.shape[0] // len(values))
    return spread.view(-1, *[1] * (tensor.dim() - 1))


def columns(table: Float[Tensor, "k n w"]) -> Float[Tensor, "k w n"]:
    """A table with its rows side by side; members that share one still do."""
    shared = table.stride(0) == 0
    return (table[:1] if shared else table).mT.contiguous().expand(len(table), -1, -1)


class Standardizer(nn.Module):
    """Every member's own mean and standard deviation of some columns, kept with its weights."""

    mean: Tensor
    scale: Tensor

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(members, 1, width))
        self.register_buffer("scale", torch.ones(members, 1, width))

    @torch.no_grad()
    def take(self, mean: Float[Tensor, "k 1 w"], scale: Float[Tensor, "k 1 w"]) -> None:
        """Use these from now on."""
        self.mean.copy_(mean)
        self.scale.copy_(scale)

    def forward(self, values: Float[Tensor, "k n w"]) -> Float[Tensor, "k n w"]:
        return (values - self.mean) / self.scale

    def inverse(self, standard: Float[Tensor, "k n w"]) -> Float[Tensor, "k n w"]:
        return standard * self.scale + self.mean


Weights = dict[str, Tensor]
Network = TypeVar("Network", bound=nn.Module)


def stack(parts: Sequence[Weights]) -> Weights:
    """The members of several networks of one shape as those of one."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def unstack(whole: Weights, count: int) -> list[Weights]:
    """A stack cut into `count` equal shares of its members."""
    shares = {name: tensor.chunk(count) for name, tensor in whole.items()}
    return [{name: pieces[i].clone() for name, pieces in shares.items()} for i in range(count)]


def with_weights(network: Network, weights: Weights) -> Network:
    """A network with these weights, where they are, ready for use."""
    network.load_state_dict(weights)
    return network.to(next(iter(weights.values())).device).eval()
