"""Dueling Q-networks: Q(s, a) = V(s) + A(s, a) − mean_a A(s, a) (Wang et al. 2016; paper, section 4)."""

from collections.abc import Iterable, Sequence

from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.nets.stacked import StackedMLP, Standardizer


class DuelingQ(nn.Module):
    """K Q-networks with a shared trunk; the last layer gives the value and the advantages side by side."""

    def __init__(self, members: int, state: int, hidden: Sequence[int], actions: int) -> None:
        super().__init__()
        self.members = members
        self.states = Standardizer(members, state)
        self.net = StackedMLP(members, state, hidden, 1 + actions, nn.ReLU)

    def forward(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        """What is acted by; the values themselves, unless something constrains the actions."""
        return self.values(state)

    def values(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        """Q(s, a) of every action."""
        out = self.net(self.states(state))
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)

    def separate(self) -> list[Iterable[nn.Parameter]]:
        """The parts that share no weight: a limit on the gradient of one must not slow another."""
        return [self.net.parameters()]

    def share(self, online: "DuelingQ") -> None:
        """Take over from the network in training what has no slow copy; here nothing."""
