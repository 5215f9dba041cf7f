"""The one minibatch loop: steps, progress, early stop, log, checkpoint, resume, CUDA-graph replay.

The minibatches of a run are drawn ahead on the CPU, chunk by chunk, from one generator a member. A member's stream of
minibatches therefore depends neither on how many members train beside it, nor on the device, nor on a restart. (What a
checkpoint is scored by may draw its own noise on the device.)
"""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from counterpoint.core.artifacts import read_tensors, under, write_tensors, write_text
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Count, Positive, Weight, check_settings
from counterpoint.nets.learner import CHUNK, StackTraining, Stepper
from counterpoint.nets.optimizers import flushing_denormals
from counterpoint.nets.stacked import per_member


@dataclass(frozen=True)
class Schedule:
    """How long to train and when to look."""

    steps: Positive = 2000
    """Updates of every member."""
    check_every: Count = 0
    """Updates between two validations; 0 keeps the last weights."""
    patience: Count = 0
    """Validations without improvement after which a member's best weights are final; 0 waits to the end."""
    rate: Literal["constant", "linear", "one-cycle"] = "constant"
    """The learning rate over time: constant, falling linearly to 0, or rising for 30% and falling by cosine."""
    log_every: Positive = 100
    """Updates between two rows of the log."""

    def __post_init__(self) -> None:
        check_settings(self)

    def factor(self, step: int) -> float:
        """What the learning rate is multiplied by at `step`."""
        share = step / self.steps
        if self.rate == "linear":
            return 1 - share
        if self.rate == "one-cycle":
            rising = 0.3
            if share < rising:
                return 0.04 + 0.96 * (1 - math.cos(math.pi * share / rising)) / 2
            return (1 + math.cos(math.pi * (share - rising) / (1 - rising))) / 2
        return 1.0


@dataclass(frozen=True)
class Monitor:
    """Where a run writes checkpoints and its log, and the callback of its progress. The default does none of these."""

    folder: Path | None = None
    """Where checkpoints and the log are written; none without a folder."""
    resume: bool = False
    """Go on from a checkpoint in the folder, if there is one."""
    report: Callable[[str, int, int], None] = lambda stage, done, total: None
    """Called as report(stage, done, total)."""
    name: str = "fit"
    """The stage, which names the files."""
    save_seconds: Weight = 5.0
    """Seconds between two checkpoints."""

    def __post_init__(self) -> None:
        check_settings(self)

    def stage(self, name: str) -> "Monitor":
        """The same watch over one named part of a longer job."""
        joined = name if self.name == "fit" else f"{self.name}.{name}"
        return Monitor(self.folder, self.resume, self.report, joined, self.save_seconds)

    @property
    def checkpoint(self) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.name}.checkpoint.safetensors"


@dataclass
class Progress:
    """Where a run stands: everything that is neither a weight nor a generator."""

    step: int = 0
    checks: int = 0
    log: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Trained:
    """The end of a run: the weights of the final step, and the selected ones, which the learner's network has too."""

    selected: dict[str, Tensor]
    last: dict[str, Tensor]
    best_score: Float[Tensor, " k"]
    best_step: Float[Tensor, " k"]
    log: list[dict[str, float]]


def train(learner: StackTraining, schedule: Schedule, seeds: Sequence[int], identity: str, monitor: Monitor) -> Trained:
    """Train every member of `learner` for the schedule; leave the selected weights in `learner.network()`.

    `identity` says what is trained on what: a checkpoint of something else is refused, not resumed.
    """
    run = _Run(learner, schedule, seeds, identity, monitor)
    run.restore()
    with flushing_denormals(), postponing_interrupts() as interrupted:
        while not run.finished:
            run.chunk()
            if interrupted.is_set():
                run.save()
                raise KeyboardInterrupt
    return run.finish()


@contextmanager
def postponing_interrupts() -> Iterator[threading.Event]:
    """Ctrl-C sets the event, so that a run can be saved between two updates; a second one stops at once."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def postpone(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, postpone)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


class _Run:
    """One training run and all its state."""

    def __init__(
        self, learner: StackTraining, schedule: Schedule, seeds: Sequence[int], identity: str, monitor: Monitor
    ) -> None:
        self.learner, self.schedule, self.identity, self.monitor = learner, schedule, identity, monitor
        self.randoms = [generator(seed, "minibatches") for seed in seeds]
        self.rates = [[float(group["lr"]) for group in o.param_groups] for o in learner.optimizers()]
        self.stepper = Stepper(learner)
        self.progress = Progress()
        self.saved_at = time.monotonic()
        network = learner.network()
        device = next(network.parameters()).device
        self.best = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        members = len(seeds)
        self.best_score = torch.full((members,), math.inf, device=device)
        self.best_step = torch.zeros(members, device=device)
        self.waited = torch.zeros(members, device=device)

    @property
    def finished(self) -> bool:
        patience = self.schedule.patience
        out_of_patience = patience > 0 and bool((self.waited >= patience).all())
        return self.progress.step >= self.schedule.steps or out_of_patience

    def chunk(self) -> None:
        """The updates up to the next validation, log row or `CHUNK`th step, whichever comes first; then look around."""
        prepare_every = self.learner.prepare_every
        if prepare_every and self.progress.step % prepare_every == 0:
            self.learner.prepare(self.progress.step)
        stop = min(self.schedule.steps, *(_next(self.progress.step, period) for period in self._periods()))
        count = stop - self.progress.step
        draws = [self.learner.draw(k, random, count) for k, random in enumerate(self.randoms)]
        self.stepper.load({name: torch.stack([d[name] for d in draws], 1) for name in draws[0]})
        losses: dict[str, Tensor] = {}
        for _ in range(count):
            self._set_rates()
            losses = self.stepper.step()
            self.progress.step += 1
        self._look(losses)

    def _periods(self) -> list[int]:
        periods = (CHUNK, self.schedule.check_every, self.schedule.log_every, self.learner.prepare_every)
        return [period for period in periods if period > 0]

    def _set_rates(self) -> None:
        factor = self.schedule.factor(self.progress.step)
        for optimizer, rates in zip(self.learner.optimizers(), self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate * factor)
                else:
                    group["lr"] = rate * factor

    def _look(self, losses: dict[str, Tensor]) -> None:
        step, schedule = self.progress.step, self.schedule
        if step % schedule.log_every == 0 or step == schedule.steps:
            self._log(losses)
        if schedule.check_every and (step % schedule.check_every == 0 or step == schedule.steps):
            self._check()
        self.monitor.report(self.monitor.name, step, schedule.steps)
        if time.monotonic() - self.saved_at > self.monitor.save_seconds:
            self.save()

    def _log(self, losses: dict[str, Tensor]) -> None:
        table = {name: values.detach().tolist() for name, values in losses.items()}
        for member in range(len(self.randoms)):
            row = {name: values[member] for name, values in table.items()}
            if not all(math.isfinite(value) for value in row.values()):
                raise CounterpointError(
                    f"{self.monitor.name}: the loss of member {member} is not finite at step {self.progress.step};"
                    " check the data for outliers or lower the learning rate"
                )
            self.progress.log.append({"step": self.progress.step, "member": member, **row})

    @torch.no_grad()
    def _check(self) -> None:
        """Keep a member's weights where its score improved; a member out of patience keeps what it has."""
        self.progress.checks += 1
        active = self.waited < self.schedule.patience if self.schedule.patience else torch.ones_like(self.waited).bool()
        score = self.learner.score()
        better = active & score.isfinite() & (score < self.best_score)
        for name, tensor in self.learner.network().state_dict().items():
            self.best[name] = torch.where(per_member(better, tensor), tensor, self.best[name])
        self.best_score = torch.where(better, score, self.best_score)
        self.best_step = torch.where(better, float(self.progress.step), self.best_step)
        self.waited = torch.where(better, 0.0, self.waited + active)

    def finish(self) -> Trained:
        self.monitor.report(self.monitor.name, self.schedule.steps, self.schedule.steps)
        if self.schedule.check_every and self.learner.unscored and not bool(self.best_score.isfinite().all()):
            raise CounterpointError(f"{self.monitor.name}: {self.learner.unscored}")
        network = self.learner.network()
        last = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        if self.monitor.folder is not None:
            self.save()
            rows = "".join(json.dumps(row) + "\n" for row in self.progress.log)
            write_text(self.monitor.folder / f"{self.monitor.name}.log.jsonl", rows)
        selected = self.best if self.schedule.check_every else last
        network.load_state_dict(selected)
        return Trained(selected, last, self.best_score, self.best_step, self.progress.log)

    def save(self) -> None:
        """The run in one file, atomically: weights, best weights, generators, counters, what optimizers remember."""
        if self.monitor.checkpoint is None:
            return
        tensors = {f"learner/{name}": tensor for name, tensor in self.learner.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"random/{k}": random.get_state() for k, random in enumerate(self.randoms)}
        tensors |= {f"run/{name}": getattr(self, name) for name in ("best_score", "best_step", "waited")}
        if not self.finished:
            tensors |= self._momenta()
        notes = {"identity": self.identity, "progress": json.dumps(self.progress.__dict__)}
        write_tensors(self.monitor.checkpoint, tensors, notes)
        self.saved_at = time.monotonic()

    def _momenta(self) -> dict[str, Tensor]:
        """What the optimizers remember: most of a checkpoint, and of no use to a run that has ended."""
        return {
            f"optimizer/{i}/{j}/{name}": tensor
            for i, optimizer in enumerate(self.learner.optimizers())
            for j, state in optimizer.state_dict()["state"].items()
            for name, tensor in state.items()
        }

    def restore(self) -> None:
        """Take up the checkpoint, if resuming and there is one."""
        path = self.monitor.checkpoint
        if path is None or not self.monitor.resume or not path.exists():
            return
        tensors, notes = read_tensors(path)
        if notes.get("identity") != self.identity:
            raise CounterpointError(
                f"checkpoint '{path.name}' belongs to another recipe, seed or table;"
                " use another folder or start without resume"
            )
        try:
            self._take_up(tensors, notes)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CounterpointError(
                f"checkpoint '{path.name}' does not fit this version ({reason}); start without resume"
            ) from None

    def _take_up(self, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
        self.progress = Progress(**json.loads(notes["progress"]))
        self.learner.load_state_dict(under(tensors, "learner/"))
        device = self.best_score.device
        self.best = {name: tensor.to(device) for name, tensor in under(tensors, "best/").items()}
        for name, tensor in under(tensors, "run/").items():
            setattr(self, name, tensor.to(device))
        for k, random in enumerate(self.randoms):
            random.set_state(tensors[f"random/{k}"])
        for i, optimizer in enumerate(self.learner.optimizers()):
            _restore_optimizer(optimizer, under(tensors, f"optimizer/{i}/"))


def _next(step: int, period: int) -> int:
    return (step // period + 1) * period


def _restore_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split("/")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
