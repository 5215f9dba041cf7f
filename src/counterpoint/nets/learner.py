"""What the training loop trains, and how one update follows another: plainly, or as a replayed CUDA graph."""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

CHUNK = 50
"""Most updates whose random choices are drawn at once."""
EAGER_CALLS = 5
"""Calls run plainly on a GPU before the next one is captured as a graph."""

Tensors = dict[str, Tensor]


class StackTraining(nn.Module, ABC):
    """K members in training. Everything that training changes is a parameter or a persistent buffer of this module."""

    allow_tf32: bool = False
    """A GPU may round the factors of matrix products to ten bits (TF32): up to twice as fast."""
    eager_updates: int = EAGER_CALLS
    """Updates run plainly on a GPU before one is captured as a graph: few where an update is long, all of them where it
    factorises matrices, which may wait for the GPU."""

    @abstractmethod
    def draw(self, member: int, random: torch.Generator, steps: int) -> Tensors:
        """The random choices of one member for the next `steps` updates, each with a leading axis of steps."""

    @abstractmethod
    def update(self, draw: Tensors) -> dict[str, Float[Tensor, " k"]]:
        """One update of every member from its own draws [K, …], never waiting for a GPU; returns losses to log."""

    unscored: str = ""
    """Why training is refused whose checkpoints all have a score that is not finite, and what to do; empty where the
    first weights are as good as any."""
    prepare_every: int = 0
    """Updates between two calls of `prepare`; 0 for none."""

    def prepare(self, update: int) -> None:
        """What is to be done between updates, `update` of which are done, and outside any graph."""

    @abstractmethod
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers, the same objects at every call."""

    @abstractmethod
    def network(self) -> nn.Module:
        """The part that is kept: its best weights by `score` come back, member by member."""

    def score(self) -> Float[Tensor, " k"]:
        """A validation score of every member, lower is better; needed only where the schedule checks."""
        raise NotImplementedError


class Replayed:
    """A function of tensors that on a GPU runs a few times plainly, then as one captured graph again and again.

    The inputs have the same names and shapes at every call, and the function neither waits for the GPU nor keeps what
    it is given. What it returns lies in the same memory every time: use it before the next call.
    """

    def __init__(self, function: Callable[[Tensors], Tensors], eager: int = EAGER_CALLS) -> None:
        self.function, self.eager, self.calls = function, eager, 0
        self.inputs: Tensors = {}
        self.outputs: Tensors = {}
        self.graph: Any = None

    def __call__(self, inputs: Tensors) -> Tensors:
        if not next(iter(inputs.values())).is_cuda:
            return self.function(inputs)
        self.calls += 1
        if self.calls <= self.eager:
            return self._aside(inputs)
        if self.graph is None:
            self._capture(inputs)
        for name, tensor in inputs.items():
            self.inputs[name].copy_(tensor)
        self.graph.replay()  # pyright: ignore[reportOptionalMemberAccess]
        return self.outputs

    def _aside(self, inputs: Tensors) -> Tensors:
        """On a stream of its own, as the warm-up of a capture asks for."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self.function(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(self, inputs: Tensors) -> None:
        self.inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with _nothing_collected(), torch.cuda.graph(self.graph):
            self.outputs = self.function(self.inputs)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """No garbage is collected inside the block: an older graph that goes while one is captured breaks the capture."""
    gc.collect()
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class Stepper:
    """Runs one update after another from draws [steps, K, …] that are loaded chunk by chunk."""

    def __init__(self, learner: StackTraining) -> None:
        self.learner = learner
        self.device = next(learner.network().parameters()).device
        self.update = Replayed(self._update, learner.eager_updates)
        self.draws: Tensors = {}
        self.done = 0

    def load(self, draws: Tensors) -> None:
        """The draws of the coming chunk."""
        self.draws, self.done = {name: tensor.to(self.device) for name, tensor in draws.items()}, 0

    def step(self) -> Tensors:
        if self.update.calls == self.update.eager:
            for optimizer in self.learner.optimizers():
                optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return self.update({name: tensor[self.done - 1] for name, tensor in self.draws.items()})

    def _update(self, draw: Tensors) -> Tensors:
        with tf32_products() if self.learner.allow_tf32 else nullcontext():
            return self.learner.update(draw)


@contextmanager
def tf32_products() -> Iterator[None]:
    """Matrix products on a GPU in TF32 inside the block."""
    settings: Any = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "tf32"
    try:
        yield
    finally:
        settings.fp32_precision = before
