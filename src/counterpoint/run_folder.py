"""A run folder that records what each of its parts was made from, and refuses parts that do not belong together.

    data ── split ──┬── task ──┬── augmented ── policy ──┬── returns
                    └── scm ───┴── check                 └── evaluation

`run.json` stores for every part a fingerprint of its file and the fingerprints of the parts it was made from. A part
can be read only while its own file and all its parents are as recorded. A part that is stale, edited or copied from
another folder is refused in one line that names the command to run again.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from counterpoint.core.artifacts import RECIPE, Artifact, encode, read_json, write_text
from counterpoint.core.errors import CounterpointError
from counterpoint.core.settings import checked
from counterpoint.data import storage
from counterpoint.data.transitions import Transitions

RECORD, FORMAT = "run.json", "counterpoint-run/2"
OLD_FORMAT, OLD_NAMES = "counterpoint-run/1", {"evaluation": "returns", "judgement": "evaluation"}
"""The previous format, which differs in the names of two parts only."""


@dataclass(frozen=True)
class RunPart:
    """File or folder of a part, and the command that makes it."""

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
    "returns": RunPart("evaluation.csv", "evaluate"),
    "evaluation": RunPart("evaluation.json", "evaluate"),
}


class RunFolder:
    """Writes the parts of a run with their lineage, and reads its table. `Run` also loads models and results."""

    @checked
    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.used: dict[str, str] = {}
        """Fingerprints of the parts that this object has read or written."""
        self._tables: dict[str, Transitions] = {}
        self._record()

    def path(self, part: str) -> Path:
        """Path of a part; a task that is a simulator is a file, a learned one a folder."""
        path = self.folder / PARTS[part].path
        return path.with_suffix(".json") if part == "task" and self._record().get(part, {}).get("simulator") else path

    def has(self, part: str) -> bool:
        """Whether the part exists and is up to date."""
        try:
            self.fingerprint(part)
        except CounterpointError:
            return False
        return True

    def present(self) -> dict[str, str]:
        """Fingerprints of all recorded parts that exist; refuse one that is out of date."""
        recorded = self._record()
        return {part: self.fingerprint(part) for part in PARTS if part in recorded and self.path(part).exists()}

    def fingerprint(self, part: str) -> str:
        """Fingerprint of a part; refuse one that is missing, was changed, or was made from other parents."""
        record, path, command = self._record().get(part), self.path(part), PARTS[part].command
        if record is None or not path.exists():
            raise CounterpointError(f"'{self.folder}' has no {part}; run {command} first")
        if _file_hash(path) != record["fingerprint"]:
            raise CounterpointError(f"'{path}' was changed after {RECORD} recorded it; run {command} again")
        for parent, fingerprint in record["made_from"].items():
            if self.fingerprint(parent) != fingerprint:
                raise CounterpointError(
                    f"'{path}' was made from another {parent} than this run has now; run {command} again"
                )
        return record["fingerprint"]

    def keep(
        self, part: str, write: Callable[[Path], object], parents: Sequence[str] = (), simulator: bool = False
    ) -> None:
        """Write a part and record its parents; parts that were made from its previous version become stale.

        Arguments:
            part: one of `PARTS`.
            write: writes the part to a path.
            parents: the parts that it was made from.
            simulator: whether a task is a simulator, which is stored as a file.
        """
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
        entry = {"fingerprint": _file_hash(path), "made_from": made_from, "simulator": simulator}
        text = json.dumps({"format": FORMAT, "parts": {**record, part: entry}}, indent=2)
        write_text(self.folder / RECORD, text + "\n")
        self.used[part] = str(entry["fingerprint"])

    def keep_task(self, task: object) -> None:
        """Keep a learned task as an artifact, a simulator as its recipe."""
        if isinstance(task, Artifact):
            self.keep("task", task.save, ["data", "split"])
        else:
            text = json.dumps(encode(task), indent=2)
            self.keep("task", lambda path: write_text(path, text), ["data", "split"], simulator=True)

    def keep_model(self, model: Artifact) -> None:
        """Keep a fitted SCM."""
        self.keep("scm", model.save, ["data", "split"])

    def start(self, data: Transitions, held_out: float | None, seed: int) -> None:
        """Keep a table and choose its held-out subjects; the same table again changes nothing."""
        if self.has("split") and self.data.fingerprint == data.fingerprint:
            self.agree(held_out)
            return
        share = held_out or 0.0
        subjects = data.split(share, seed)[1].subject.unique().tolist()
        self.keep("data", lambda path: storage.write(data, path))
        split = json.dumps({"held_out": share, "seed": seed, "subjects": subjects})
        self.keep("split", lambda path: write_text(path, split), ["data"])

    def agree(self, held_out: float | None) -> None:
        """Refuse another held-out share than the run's."""
        share = self._split()["held_out"]
        if held_out is not None and held_out != share:
            raise CounterpointError(
                f"'{self.folder}' holds out a share of {share} of its subjects, decided when its data came in;"
                f" leave --held-out away or start another run for {held_out}"
            )

    @property
    def data(self) -> Transitions:
        """All rows, including those of held-out subjects."""
        path, fingerprint = self._use("data"), self.used["data"]
        if fingerprint not in self._tables:
            self._tables = {fingerprint: storage.read(path)}
        return self._tables[fingerprint]

    @property
    def training(self) -> Transitions:
        """The rows of the subjects that are not held out."""
        return self.data[~self._is_held_out()]

    @property
    def held_out(self) -> Transitions:
        """The rows of the held-out subjects; empty if there are none."""
        return self.data[self._is_held_out()]

    @property
    def augmented(self) -> Transitions:
        """Real and imagined rows, memory-mapped because they may be many times those of the table."""
        return storage.read(self._use("augmented"), mapped=True)

    def _json(self, part: str) -> dict[str, Any]:
        return read_json(self._use(part), f"run {PARTS[part].command} again")

    def _split(self) -> dict[str, Any]:
        return self._json("split")

    def _use(self, part: str) -> Path:
        """Path of a part that is about to be read. `keep` then refuses parents that were replaced since."""
        for name in (part, *self._record().get(part, {}).get("made_from", {})):
            self.used[name] = self.fingerprint(name)
        return self.path(part)

    def _is_held_out(self) -> torch.Tensor:
        return torch.isin(self.data.subject, torch.tensor(self._split()["subjects"], dtype=torch.long))

    def _record(self) -> dict[str, Any]:
        path = self.folder / RECORD
        if not path.exists():
            return {}
        record = read_json(path, "use another folder")
        parts = record.get("parts")
        if isinstance(parts, dict) and record.get("format") == OLD_FORMAT:
            parts = {OLD_NAMES.get(str(name), str(name)): entry for name, entry in parts.items()}
        elif record.get("format") != FORMAT:
            parts = None
        if not isinstance(parts, dict) or not all(_is_entry(name, entry) for name, entry in parts.items()):
            raise CounterpointError(f"'{path}' is not a {FORMAT} record; use another folder")
        return parts


def _is_entry(part: str, entry: Any) -> bool:
    """Whether an entry of the record is valid; the parents of a part must come before it in `PARTS`."""
    if part not in PARTS or not isinstance(entry, dict) or not isinstance(entry.get("fingerprint"), str):
        return False
    order, parents = list(PARTS), entry.get("made_from")
    return isinstance(parents, dict) and set(parents) <= set(order[: order.index(part)])


def _file_hash(path: Path) -> str:
    """Hash of a file; for an artifact, of its recipe, which contains the hash of its weights."""
    file = path / RECIPE if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    except OSError:
        raise CounterpointError(f"'{path}' cannot be read; run the command that makes it again") from None
