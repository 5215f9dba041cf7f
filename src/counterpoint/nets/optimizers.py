"""Optimizers of stacked networks: Adam for CPU and GPU alike, and every member's own gradient clipped."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import Optimizer


def adam(
    parameters: Iterable[nn.Parameter], rate: float, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0.0
) -> Optimizer:
    """AdamW as one fused kernel, capturable with its rate in a tensor where the parameters are on a GPU."""
    parameters = list(parameters)
    on_gpu = parameters[0].is_cuda
    lr = torch.tensor(rate, device=parameters[0].device) if on_gpu else rate
    return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=decay, fused=True, capturable=on_gpu)


def clip_members(parameters: Iterable[nn.Parameter], limit: float) -> None:
    """Scale every member's own gradient to a norm of at most `limit`."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(g, dim=tuple(range(1, g.dim()))) for g in grads])
    factor = (limit / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(grads, [factor.view(-1, *[1] * (g.dim() - 1)) for g in grads])  # pyright: ignore


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Numbers below 1e-38 count as zero: Adam's momentum of a dead unit decays to them, and they make it 4× slower."""
    flushed_already = float(torch.tensor(1e-38) * 1e-2) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed_already)
