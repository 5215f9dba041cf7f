"""Dueling Q-networks: Q(s, a) = V(s) + A(s, a) − mean_a A(s, a) (Wang et al. 2016; paper, section 4)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.nets.stacked import StackedMLP


class DuelingQ(nn.Module):
    """K Q-networks with a shared trunk; the last layer gives the value and the advantages side by side."""

    state_mean: Tensor
    state_scale: Tensor

    def __init__(self, members: int, state: int, hidden: Sequence[int], actions: int, batch_norm: bool = False) -> None:
        super().__init__()
        self.members = members
        self.register_buffer("state_mean", torch.zeros(members, 1, state))
        self.register_buffer("state_scale", torch.ones(members, 1, state))
        self.net = StackedMLP(members, state, hidden, 1 + actions, nn.ReLU, batch_norm)

    def forward(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        out = self.net((state - self.state_mean) / self.state_scale)
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)
