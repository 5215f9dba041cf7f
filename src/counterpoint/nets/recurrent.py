"""K long short-term memories as one (Hochreiter & Schmidhuber 1997), which torch's own has no leading axis for.

i, f, o = σ(x W + h V + b),    g = tanh(x W + h V + b),    c' = f·c + i·g,    h' = o·tanh(c')
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class StackedLSTM(nn.Module):
    """K one-layer LSTMs; the gates stand side by side in torch's order i, f, g, o."""

    def __init__(self, members: int, inputs: int, width: int) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.zeros(members, inputs, 4 * width))
        self.hidden = nn.Parameter(torch.zeros(members, width, 4 * width))
        self.bias = nn.Parameter(torch.zeros(members, 1, 4 * width))

    def forward(self, x: Float[Tensor, "k n length i"]) -> Float[Tensor, "k n w"]:
        """What the last step of every sequence leaves behind; each starts from zeros."""
        members, count, length, inputs = x.shape
        driven = torch.baddbmm(self.bias, x.transpose(1, 2).reshape(members, -1, inputs), self.input)
        hidden = cell = x.new_zeros(members, count, self.hidden.shape[1])
        for gates in driven.unflatten(1, (length, count)).unbind(1):
            let_in, keep, new, let_out = torch.baddbmm(gates, hidden, self.hidden).chunk(4, -1)
            cell = keep.sigmoid() * cell + let_in.sigmoid() * new.tanh()
            hidden = let_out.sigmoid() * cell.tanh()
        return hidden

    @torch.no_grad()
    def initialise(self, member: int, random: torch.Generator) -> None:
        """Uniform in ±1/√width, as torch's own."""
        bound = self.hidden.shape[1] ** -0.5
        for parameter in (self.input, self.hidden, self.bias):
            parameter[member] = (2 * torch.rand(parameter.shape[1:], generator=random) - 1) * bound
