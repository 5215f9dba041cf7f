"""What the training loop trains, and how one update follows another: plainly, or as a replayed CUDA graph."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

CHUNK = 50
"""Most updates whose random choices are drawn at once."""
EAGER_STEPS = 5
"""Updates run plainly on a GPU before the next one is captured as a graph."""


class Learner(nn.Module, ABC):
    """K members in training. Everything that training changes is a parameter or a persistent buffer of this module."""

    rough: bool = False
    """A GPU may round the factors of matrix products to ten bits (TF32): up to twice as fast."""

    @abstractmethod
    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        """The random choices of one member for the next `steps` updates, each with a leading axis of steps."""

    @abstractmethod
    def update(self, draw: dict[str, Tensor]) -> dict[str, Float[Tensor, " k"]]:
        """One update of every member from its own draws [K, …], never waiting for a GPU; returns losses to log."""

    @abstractmethod
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers, the same objects at every call."""

    @abstractmethod
    def network(self) -> nn.Module:
        """The part that is kept: its best weights by `score` come back, member by member."""

    def score(self) -> Float[Tensor, " k"]:
        """A validation score of every member, lower is better; needed only where the schedule checks."""
        raise NotImplementedError


class Stepper:
    """Runs one update after another; on a GPU the first few plainly, then one captured graph again and again."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.device = next(learner.network().parameters()).device
        self.on_gpu = self.device.type == "cuda"
        self.buffers: dict[str, Tensor] = {}
        self.position = torch.zeros(1, dtype=torch.long, device=self.device)
        self.index, self.done = 0, 0
        self.graph: Any = None
        self.losses: dict[str, Tensor] = {}

    def load(self, draws: dict[str, Tensor]) -> None:
        """The draws [steps, K, …] of the coming chunk, into the same memory every time on a GPU."""
        self.index = 0
        if not self.on_gpu:
            self.buffers = draws
            return
        for name, tensor in draws.items():
            if name not in self.buffers:
                self.buffers[name] = torch.zeros(CHUNK, *tensor.shape[1:], dtype=tensor.dtype, device=self.device)
            self.buffers[name][: len(tensor)].copy_(tensor)
        self.position.zero_()

    def step(self) -> dict[str, Tensor]:
        if not self.on_gpu:
            self.index += 1
            return self.learner.update({name: tensor[self.index - 1] for name, tensor in self.buffers.items()})
        self.done += 1
        if self.done <= EAGER_STEPS:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._gpu_step()
            torch.cuda.current_stream().wait_stream(stream)
        else:
            if self.graph is None:
                self._capture()
            self.graph.replay()  # pyright: ignore[reportOptionalMemberAccess]
        return self.losses

    def _gpu_step(self) -> None:
        with _products(self.learner.rough):
            self.losses = self.learner.update({n: t.index_select(0, self.position)[0] for n, t in self.buffers.items()})
        self.position += 1

    def _capture(self) -> None:
        for optimizer in self.learner.optimizers():
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._gpu_step()


@contextmanager
def _products(rough: bool) -> Iterator[None]:
    """Matrix products on a GPU in TF32 inside the block, if `rough`."""
    settings: Any = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "tf32" if rough else before
    try:
        yield
    finally:
        settings.fp32_precision = before
