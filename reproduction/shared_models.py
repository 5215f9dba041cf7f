"""Models that several methods of an experiment are learned by: fitted once, and on disk until all of them are.

Learners of one recipe fit the very same models on the same jobs, so that no number depends on who fitted them. A method
that finds none, as on a machine with a disk of its own, or damaged ones, fits them itself.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from counterpoint.core.artifacts import device_of, read_json
from counterpoint.core.errors import CounterpointError
from counterpoint.core.results import write_json
from counterpoint.data.jobs import Job
from counterpoint.models.base import Model
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Learned, ModelBased, PolicyLearner
from counterpoint.registry import load
from counterpoint.tasks.base import Task
from reproduction.executors import Executor
from reproduction.workers import Report

SECONDS = "models of several methods"
"""What their seconds are called beside those of the methods."""


class Keyed(Protocol):
    """Work that needs models."""

    @property
    def models_key(self) -> str:
        """What the models are known by; empty where nothing is fitted before the policy."""
        ...


Work = TypeVar("Work", bound=Keyed)


@dataclass(frozen=True)
class SharedModels:
    """A folder of them: a folder of models and a record for every key."""

    folder: Path
    device: str

    def prepare(
        self, works: Sequence[Work], fit: Callable[[Work, Report], None], executor: Executor, report: Report
    ) -> None:
        """Fit what several of `works` need. Where that fails, each of them fits its own and says why it could not."""
        if wanted := self.wanted(works):
            for _ in executor.run(fit, wanted, report):
                pass

    def wanted(self, works: Sequence[Work]) -> list[Work]:
        """One of those whose models several need and nobody has fitted, for each of these."""
        count = Counter(work.models_key for work in works)
        first = {work.models_key: work for work in reversed(works) if work.models_key and count[work.models_key] > 1}
        return [work for key, work in first.items() if self._size(key) == 0]

    def fit(self, key: str, learner: PolicyLearner, jobs: Sequence[Job], report: Report, save_seconds: float) -> None:
        """Fit and keep, the record last: without one there are none."""
        assert isinstance(learner, ModelBased)
        begun, place = time.perf_counter(), self._place(key)
        checkpoints = Monitor(place / "checkpoints", True, report, "models", save_seconds)
        for number, model in enumerate(learner.fit_models(jobs, checkpoints, self.device)):
            model.save(place / str(number))
        shutil.rmtree(place / "checkpoints", ignore_errors=True)
        write_json({"models": len(jobs), "seconds": round(time.perf_counter() - begun, 1)}, self._record(key))

    def learn(
        self, key: str, learner: PolicyLearner, jobs: Sequence[Job], task: Task, monitor: Monitor
    ) -> list[Learned]:
        """The policies of all jobs, by the models that are kept or by its own."""
        models = self._kept(key, len(jobs))
        if not isinstance(learner, ModelBased) or models is None:
            return learner.fit_many(jobs, task, monitor, self.device)
        learner.check(jobs, task)
        return learner.with_models(jobs, models, task, monitor, self.device)

    def seconds(self, works: Sequence[Keyed]) -> dict[str, float]:
        """What fitting those of `works` took."""
        paths = {self._record(work.models_key) for work in works if work.models_key}
        records = [read_json(path, "delete it") for path in paths if path.exists()]
        return {SECONDS: round(sum(record["seconds"] for record in records), 1)} if records else {}

    def forget(self) -> None:
        """Once all methods are done, the seconds alone stay."""
        for place in self.folder.glob("*"):
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)

    def _size(self, key: str) -> int:
        """How many are kept under a key."""
        if not (key and self._record(key).exists() and self._place(key).is_dir()):
            return 0
        return read_json(self._record(key), "delete it")["models"]

    def _place(self, key: str) -> Path:
        return self.folder / f"{key}-{device_of(self.device).type}"

    def _record(self, key: str) -> Path:
        return self.folder / f"{self._place(key).name}.json"

    def _kept(self, key: str, count: int) -> list[Model] | None:
        """So many models where they are whole."""
        if self._size(key) != count:
            return None
        try:
            models = [load(self._place(key) / str(number)) for number in range(count)]
        except CounterpointError:
            return None
        for model in models:
            model.mechanism.to(device_of(self.device))
        return models
