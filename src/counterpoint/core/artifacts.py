"""A fitted thing on disk: safetensors weights and a JSON recipe; loading runs no code from the file."""

import errno
import hashlib
import json
import os
import re
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.settings import checked
from counterpoint.core.version import VERSION

WEIGHTS, RECIPE = "weights.safetensors", "recipe.json"
FORMAT = "counterpoint/5"
"""The format of `recipe.json`, raised whenever a class that artifacts name is renamed or changes its fields."""
COMMANDS = {"scm": "counterpoint fit", "task": "counterpoint fit", "policy": "counterpoint train"}
"""The command that makes an artifact, by the artifact's kind."""

Kind = TypeVar("Kind")

FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some disk space and run the command again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a folder that may be written to"),
}
"""What to do about an error of the system; another is a matter of the path."""


@contextmanager
def replacing(path: Path | str | os.PathLike[str]) -> Iterator[Path]:
    """A draft beside `path` that takes its place when the block ends: a reader sees the old file or the new one.

    A full disk or a folder that cannot be written to is one line that names the file.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _writing(path):
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written into; asked before the work whose result would be lost."""
    folder = folder.absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    with _writing(folder), tempfile.TemporaryFile(dir=existing) as file:
        file.write(bytes(4096))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """One line in place of what the system says of a file that cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _number(error)
        reason = os.strerror(number) if number else str(error)
        raise CounterpointError(f"cannot write '{path}': {reason}; {FIXES.get(number, 'check the path')}") from None


def _number(error: OSError | SafetensorError) -> int:
    """The system's number of an error, which safetensors has in its text alone; 0 where there is none."""
    if isinstance(error, OSError):
        return error.errno or 0
    match = re.search(r"os error (\d+)", str(error))
    return int(match[1]) if match else 0


def write_text(path: Path | str, text: str) -> None:
    """A text file, whole or not at all."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: dict[str, str]) -> None:
    """Tensors and a few strings into one safetensors file, atomically."""
    # One string, because safetensors writes several in an order that changes from run to run.
    metadata = {"notes": json.dumps(notes, sort_keys=True)}
    with replacing(path) as draft:
        save_file({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, draft, metadata)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `write_tensors` wrote; a missing, damaged or foreign file is one clear line."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118
    except FileNotFoundError:
        raise CounterpointError(f"'{path}' does not exist; check the path") from None
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise CounterpointError(f"'{path}' is damaged or not a safetensors file ({error}); write it again") from None


def encode(value: Any) -> Any:
    """A recipe as JSON that says it exactly: an object is its fields and the name of its class, a tensor its numbers.

    cattrs would ask for a hook for each union of recipes and for tensors; these lines need none, and refuse the rest.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Tensor):
        return {"type": "Tensor", "dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if isinstance(value, Artifact):
        return {"type": type(value).__name__, "fingerprint": value.fingerprint}
    if isinstance(value, Mapping) and "type" not in value and all(isinstance(key, str) for key in value):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [encode(item) for item in value]
    return {"type": type(value).__name__, **{name: encode(item) for name, item in _fields(value).items()}}


def _fields(value: Any) -> dict[str, Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, tuple):
        return value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, type) or callable(value) or not hasattr(value, "__dict__"):
        raise CounterpointError(
            f"{getattr(value, '__name__', type(value).__name__)} cannot be written exactly; make it a frozen dataclass"
            " of numbers, text, tuples and tensors"
        )
    return vars(value)


def decode(value: Any, classes: Mapping[str, type]) -> Any:
    """Decode a recipe from its JSON; only the given classes can be created, and only with fields they have."""
    if isinstance(value, list):
        return tuple(decode(item, classes) for item in value)
    if not isinstance(value, dict):
        return value
    if value.get("type") == "Tensor":
        return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]))
    arguments = {key: decode(item, classes) for key, item in value.items() if key != "type"}
    if "type" not in value:
        return arguments
    try:
        return classes[value["type"]](**arguments)
    except (KeyError, TypeError):
        raise CounterpointError(
            f"'{value['type']}' is not known here; name your own class when loading, or use the version that wrote it"
        ) from None


def digest(value: Any) -> str:
    """A short stable hash of what JSON can hold exactly."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def recipe_hash(*values: Any) -> str:
    """A short stable hash of recipes; what cannot be encoded exactly is refused."""
    return digest([encode(value) for value in values])


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """A short hash of every name, shape, type and number."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        numbers = tensor.detach().cpu().contiguous()
        total.update(f"{name}{tuple(numbers.shape)}{numbers.dtype}".encode())
        total.update(numbers.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]


class Artifact:
    """Base class of everything that a recipe fits: it saves to a folder, and `counterpoint.load` reads it back."""

    kind: ClassVar[str]
    without_bound: ClassVar[tuple[str, ...]] = ()
    """The weights that may be −∞, as the logit of what never happens is."""
    recipe: Any
    schema: Any
    origin: Any

    @property
    def state_names(self) -> tuple[str, ...]:
        return self.schema.state_names

    @property
    def actions(self) -> Any:
        return self.schema.actions

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """All its numbers."""

    def extras(self) -> dict[str, Any]:
        """What a recipe needs beside the weights to build the thing again."""
        return {}

    def parts(self) -> dict[str, Any]:
        """Return the artifacts and recipes that it depends on, by name."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The weights, those of its parts behind their name."""
        inner = {name: part.tensors() for name, part in self.parts().items() if isinstance(part, Artifact)}
        return self.weights() | {f"{name}/{key}": t for name, tensors in inner.items() for key, t in tensors.items()}

    def header(self) -> dict[str, Any]:
        """All that is needed to rebuild the thing around its weights."""
        described = {name: encode(getattr(self, name)) for name in ("kind", "recipe", "schema", "origin")}
        parts = {name: p.header() if isinstance(p, Artifact) else encode(p) for name, p in self.parts().items()}
        return {**described, **self.extras(), "parts": parts}

    @property
    def fingerprint(self) -> str:
        """A short hash of everything that is saved."""
        return digest([self.header(), tensors_hash(self.tensors())])

    @checked
    def save(self, folder: Path | str) -> None:
        """Write weights and recipe into `folder`, the recipe last: it carries the hash of both."""
        folder, tensors, header = Path(folder), self.tensors(), self.header()
        write_tensors(folder / WEIGHTS, tensors, {"format": FORMAT})
        header |= {"fingerprint": digest([header, tensors_hash(tensors)])}
        write_text(folder / RECIPE, json.dumps({"format": FORMAT, "version": VERSION, **header}, indent=2))


@dataclass(frozen=True)
class Saved:
    """An artifact read back: what `recipe.rebuild(saved)` makes the fitted thing of."""

    recipe: Any
    schema: Any
    origin: Any
    header: dict[str, Any]
    weights: dict[str, Tensor]
    parts: dict[str, Any]


def load(folder: Path | str, kind: type[Kind], classes: Mapping[str, type]) -> Kind:
    """Read an artifact back and check it against its hash.

    Args:
        folder: the folder that `Artifact.save` wrote.
        kind: the class that the artifact must have.
        classes: the classes that may be created, by name.
    """
    folder = Path(folder)
    header = _read_header(folder)
    if not (folder / WEIGHTS).exists():
        raise CounterpointError(f"'{folder}' has no {WEIGHTS}; it is not a whole artifact, save it again")
    tensors, _ = read_tensors(folder / WEIGHTS)
    fingerprint = header.pop("fingerprint", None)
    if digest([header, tensors_hash(tensors)]) != fingerprint:
        raise CounterpointError(f"'{folder}' is not as it was saved (edited, truncated or damaged); save it again")
    try:
        artifact = _rebuild(header, tensors, classes)
    except CounterpointError:
        raise
    except (LookupError, AttributeError, RuntimeError, TypeError, ValueError, OverflowError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CounterpointError(f"'{folder}' does not hold what its recipe says ({reason}); save it again") from None
    if not isinstance(artifact, kind):
        noun = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
        raise CounterpointError(f"'{folder}' holds a {type(artifact).__name__}, not a {noun}; name another folder")
    return artifact


def _rebuild(header: dict[str, Any], tensors: dict[str, Tensor], classes: Mapping[str, type]) -> Any:
    parts, weights = {}, tensors
    for name, part in header["parts"].items():
        inner = under(tensors, f"{name}/")
        parts[name] = decode(part, classes) if "type" in part else _rebuild(part, inner, classes)
        weights = {key: tensor for key, tensor in weights.items() if not key.startswith(f"{name}/")}
    recipe, schema, origin = (decode(header[name], classes) for name in ("recipe", "schema", "origin"))
    artifact = recipe.rebuild(Saved(recipe, schema, origin, header, weights, parts))
    _check_weights(artifact, weights)
    return artifact


def _check_weights(artifact: Any, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that a fitted thing cannot have; an edited file whose hash was written anew has the right hash."""
    expected = artifact.weights()
    for name, tensor in weights.items():
        if name not in expected or expected[name].shape != tensor.shape or expected[name].dtype != tensor.dtype:
            raise ValueError(f"{name} has another shape or type")
        never = tensor == -torch.inf if name in artifact.without_bound else torch.zeros_like(tensor, dtype=torch.bool)
        if not (tensor.isfinite() | never).all():
            raise ValueError(f"the numbers of {name} are not finite")


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name starts with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _read_header(folder: Path) -> dict[str, Any]:
    header = read_json(folder / RECIPE, "name the folder of a fitted model or policy")
    written = str(header.pop("format", None))
    if re.fullmatch(r"counterpoint/\d+", written) and written != FORMAT:
        raise CounterpointError(
            f"'{folder}' was written by another version of counterpoint (format {written}, read is {FORMAT});"
            f" make it again with {COMMANDS.get(str(header.get('kind')), 'fit')}"
        )
    if written != FORMAT:
        raise CounterpointError(
            f"'{folder / RECIPE}' is not a {FORMAT} recipe; name the folder of a fitted model or policy"
        )
    header.pop("version", None)
    return header


def read_json(path: Path, fix: str) -> dict[str, Any]:
    """A JSON object from a file; anything else is one line."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise CounterpointError(f"'{path.parent}' has no readable {path.name}; {fix}") from None
    except (ValueError, RecursionError):
        raise CounterpointError(f"'{path}' is not JSON (damaged); {fix}") from None
    if not isinstance(value, dict):
        raise CounterpointError(f"'{path}' is not a JSON object; {fix}")
    return value


def device_of(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise CounterpointError(f"device '{name}' is not known; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise CounterpointError(f"device '{name}' is not supported; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CounterpointError("no CUDA device is available here; use --device cpu")
    return device
