"""A run folder that knows where each of its parts came from, and refuses one that does not belong.

    data ── split ──┬── task ──┬── augmented ── policy ──┬── evaluation
                    └── scm ───┴── check                 └── judgement

`run.json` records for every part a fingerprint of its file and the fingerprints of the parts it was made from. A part
is used only while its own file and all its parents are still what the record says: anything stale, edited or copied in
from another folder is refused in one line that names the command to run again.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from counterpoint.checks.findings import CheckReport
from counterpoint.core.artifacts import RECIPE, Artifact, decode, encode, read_json, write_text
from counterpoint.core.errors import CounterpointError
from counterpoint.core.settings import checked
from counterpoint.data import storage
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.ope.result import Evaluation
from counterpoint.policies.base import Policy, Verdict
from counterpoint.registry import Registry, load
from counterpoint.simulation.streaming import StoredPieces
from counterpoint.tasks.base import Task

RECORD, FORMAT = "run.json", "counterpoint-run/1"


@dataclass(frozen=True)
class RunPart:
    """Where a part lies, and which command makes it."""

    path: str
    command: str


PARTS = {
    "data": RunPart("data.parquet", "simulate, or fit with --data"),
    "split": RunPart("split.json", "simulate, or fit with --data"),
    "task": RunPart("task", "simulate, or fit"),
    "scm": RunPart("scm", "fit"),
    "check": RunPart("check.json", "check-scm"),
    "augmented": RunPart("augmented.parquet", "augment"),
    "policy": RunPart("policy", "train"),
    "evaluation": RunPart("evaluation.csv", "evaluate"),
    "judgement": RunPart("evaluation.json", "evaluate"),
}


class Run:
    """One run folder. Name classes of your own (a task, a recipe) behind it, so that they can be loaded back.

    Example:
        >>> run = Run("runs/first")  # doctest: +SKIP
        >>> policy, rows = run.policy, run.held_out  # doctest: +SKIP
    """

    @checked
    def __init__(self, folder: Path | str, *classes: type) -> None:
        self.folder, self.classes = Path(folder), classes
        self.used: dict[str, str] = {}
        self._tables: dict[str, Transitions] = {}
        self._record()

    def path(self, part: str) -> Path:
        """Where a part lies; a task that is a simulator is a file, a learned one a folder."""
        path = self.folder / PARTS[part].path
        return path.with_suffix(".json") if part == "task" and self._record().get(part, {}).get("simulator") else path

    def has(self, part: str) -> bool:
        """Whether the part is there and belongs."""
        try:
            self.fingerprint(part)
        except CounterpointError:
            return False
        return True

    def there(self) -> dict[str, str]:
        """The fingerprints of all parts that were made; one that lies there and does not belong is refused."""
        recorded = self._record()
        return {part: self.fingerprint(part) for part in PARTS if part in recorded and self.path(part).exists()}

    def has_task(self) -> bool:
        """Whether the present data have a task; a learned one that is damaged is none, a simulator is refused then."""
        entry = self._record().get("task")
        if entry is None or entry["made_from"] != {name: self.fingerprint(name) for name in entry["made_from"]}:
            return False
        try:
            return isinstance(self.task, Task)
        except CounterpointError:
            if entry.get("simulator"):
                raise
            return False

    def fingerprint(self, part: str) -> str:
        """The fingerprint of a part that is there, unchanged, and made from what is here now; else one line."""
        record, path, again = self._record().get(part), self.path(part), PARTS[part].command
        if record is None or not path.exists():
            raise CounterpointError(f"'{self.folder}' has no {part}; run {again} first")
        if _fingerprint(path) != record["fingerprint"]:
            raise CounterpointError(f"'{path}' was changed after {RECORD} recorded it; run {again} again")
        for parent, fingerprint in record["made_from"].items():
            if self.fingerprint(parent) != fingerprint:
                raise CounterpointError(
                    f"'{path}' was made from another {parent} than this run has now; run {again} again"
                )
        return record["fingerprint"]

    def keep(
        self, part: str, write: Callable[[Path], object], parents: Sequence[str] = (), simulator: bool = False
    ) -> None:
        """Write a part and record what it was made from; what was made from its predecessor is stale from now on."""
        made_from = {parent: self.fingerprint(parent) for parent in parents}
        for parent, fingerprint in made_from.items():
            if self.used.get(parent, fingerprint) != fingerprint:
                raise CounterpointError(
                    f"the {parent} of '{self.folder}' was replaced meanwhile; run the command again"
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        record, path = self._record(), self.folder / PARTS[part].path
        path = path.with_suffix(".json") if simulator else path
        write(path)
        entry = {"fingerprint": _fingerprint(path), "made_from": made_from, "simulator": simulator}
        text = json.dumps({"format": FORMAT, "parts": {**record, part: entry}}, indent=2)
        write_text(self.folder / RECORD, text + "\n")
        self.used[part] = str(entry["fingerprint"])

    def start(self, data: Transitions, held_out: float | None, seed: int) -> None:
        """Take in a table and decide, once, which subjects are kept aside; the same table again changes nothing."""
        if self.has("split") and self.data.fingerprint == data.fingerprint:
            self.agree(held_out)
            return
        share = held_out or 0.0
        aside = data.split(share, seed)[1].subject.unique().tolist()
        self.keep("data", lambda path: storage.write(data, path))
        chosen = json.dumps({"held_out": share, "seed": seed, "subjects": aside})
        self.keep("split", lambda path: write_text(path, chosen), ["data"])

    def agree(self, held_out: float | None) -> None:
        """Refuse another split than the run's own."""
        own = self._split()["held_out"]
        if held_out is not None and held_out != own:
            raise CounterpointError(
                f"'{self.folder}' holds out a share of {own} of its subjects, decided when its data came in;"
                f" leave --held-out away or start another run for {held_out}"
            )

    @property
    def data(self) -> Transitions:
        """All rows, held-out subjects too."""
        path, fingerprint = self._use("data"), self.used["data"]
        if fingerprint not in self._tables:
            self._tables = {fingerprint: storage.read(path)}
        return self._tables[fingerprint]

    @property
    def training(self) -> Transitions:
        """The rows of the subjects that may be learned from."""
        return self.data[~self._aside()]

    @property
    def training_source(self) -> StoredPieces:
        """The same rows, to be read piece by piece."""
        return StoredPieces.of(self._use("data"), self._split()["subjects"])

    @property
    def held_out(self) -> Transitions:
        """The rows of the subjects that were kept aside; none where none were."""
        return self.data[self._aside()]

    @property
    def task(self) -> Task:
        """A simulator, or the reward and ends that `fit` learned."""
        path = self._use("task")
        task = load(path, Task, self.classes) if path.is_dir() else self._simulator(path)
        if not isinstance(task, Task):
            raise CounterpointError(f"'{path}' does not hold a task; run {PARTS['task'].command} again")
        return task

    @property
    def scm(self) -> StructuralCausalModel:
        return load(self._use("scm"), StructuralCausalModel, self.classes)

    @property
    def augmented(self) -> Transitions:
        """Real and imagined rows, in a mapped file: they may be many times those of the table."""
        return storage.read(self._use("augmented"), mapped=True)

    @property
    def policy(self) -> Policy:
        return load(self._use("policy"), Policy, self.classes)

    @property
    def judgement(self) -> Evaluation:
        """What the log says of the policy."""
        return Evaluation.from_json(read_json(self._use("judgement"), f"run {PARTS['judgement'].command} again"))

    @property
    def verdict(self) -> Verdict:
        """What is known of the model behind the run's policy: its latest check, or what the policy was saved with."""
        own = "scm" in self._record().get("policy", {}).get("made_from", {})
        return self.checked if own and self.has("check") else self.policy.verdict

    @property
    def checked(self) -> Verdict:
        """What the checks say of the run's model."""
        found = self.findings
        return Verdict(found.trust, found.reasons)

    @property
    def findings(self) -> CheckReport:
        """Every check of the run's model."""
        return CheckReport.from_json(read_json(self._use("check"), f"run {PARTS['check'].command} again"))

    def keep_task(self, task: Task) -> None:
        """A learned task as an artifact, a simulator as its recipe."""
        if isinstance(task, Artifact):
            self.keep("task", task.save, ["data", "split"])
        else:
            text = json.dumps(encode(task), indent=2)
            self.keep("task", lambda path: write_text(path, text), ["data", "split"], simulator=True)

    def keep_model(self, model: Model) -> None:
        self.keep("scm", model.save, ["data", "split"])

    def _simulator(self, path: Path) -> Any:
        return decode(read_json(path, "run simulate again"), Registry(self.classes))

    def _split(self) -> dict[str, Any]:
        return read_json(self._use("split"), f"run {PARTS['split'].command} again")

    def _use(self, part: str) -> Path:
        """Where a part lies that is about to be read; what is made from it must find it, and its parents, unchanged."""
        for each in (part, *self._record().get(part, {}).get("made_from", {})):
            self.used[each] = self.fingerprint(each)
        return self.path(part)

    def _aside(self) -> torch.Tensor:
        return torch.isin(self.data.subject, torch.tensor(self._split()["subjects"], dtype=torch.long))

    def _record(self) -> dict[str, Any]:
        path = self.folder / RECORD
        if not path.exists():
            return {}
        record = read_json(path, "use another folder")
        parts = record.get("parts")
        if (
            record.get("format") != FORMAT
            or not isinstance(parts, dict)
            or not all(map(_is_entry, parts, parts.values()))
        ):
            raise CounterpointError(f"'{path}' is not a {FORMAT} record; use another folder")
        return parts


def _is_entry(part: str, entry: Any) -> bool:
    """Whether a line of the record is one: a part is made from parts that come before it."""
    if part not in PARTS or not isinstance(entry, dict) or not isinstance(entry.get("fingerprint"), str):
        return False
    order, parents = list(PARTS), entry.get("made_from")
    return isinstance(parents, dict) and set(parents) <= set(order[: order.index(part)])


def _fingerprint(path: Path) -> str:
    """A hash of a file's bytes; of an artifact's recipe, which carries the hash of its weights."""
    file = path / RECIPE if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    except OSError:
        raise CounterpointError(f"'{path}' cannot be read; run the command that makes it again") from None
