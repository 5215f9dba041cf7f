"""A fitted thing on disk: safetensors weights and a JSON recipe; loading runs no code from the file."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from counterpoint.errors import CounterpointError
from counterpoint.version import VERSION

WEIGHTS, RECIPE, FORMAT = "weights.safetensors", "recipe.json", "counterpoint/1"


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write beside, then rename: a reader sees the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """Tensors and a few strings into one safetensors file, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # One string, because safetensors writes several in an order that changes from run to run.
        metadata = {"notes": json.dumps(notes, sort_keys=True)}
        save_file({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, beside, metadata)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


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
    """A recipe as JSON: a dataclass becomes its fields and the name of its class."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__, **{f.name: encode(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(value: Any, classes: dict[str, type]) -> Any:
    """The recipe back from its JSON; only the classes given can be made, and only with fields they have."""
    if isinstance(value, list):
        return tuple(decode(item, classes) for item in value)
    if not isinstance(value, dict):
        return value
    if "type" not in value:
        return {key: decode(item, classes) for key, item in value.items()}
    arguments = {key: decode(item, classes) for key, item in value.items() if key != "type"}
    try:
        return classes[value["type"]](**arguments)
    except (KeyError, TypeError):
        raise CounterpointError(
            f"recipe of type '{value['type']}' is not known here; it needs another version"
        ) from None


def recipe_hash(*values: Any) -> str:
    """A short stable hash of recipes and whatever else JSON can hold."""
    text = json.dumps([encode(value) for value in values], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def save(folder: Path | str, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write an artifact: first the weights, then the recipe that carries their hash, so that a torn pair is noticed."""
    folder = Path(folder)
    write_tensors(folder / WEIGHTS, tensors, {"format": FORMAT})
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    text = json.dumps({"format": FORMAT, "version": VERSION, **header, "weights_sha256": digest}, indent=2)
    write_atomically(folder / RECIPE, lambda file: file.write(text.encode()))


def load(folder: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read an artifact back, checked against its hash."""
    folder = Path(folder)
    header = _read_header(folder)
    path = folder / WEIGHTS
    if not path.exists():
        raise CounterpointError(f"'{folder}' has no {WEIGHTS}; it is not a whole artifact, save it again")
    if hashlib.sha256(path.read_bytes()).hexdigest() != header.get("weights_sha256"):
        raise CounterpointError(f"'{path}' does not match its recipe (truncated or damaged); save the artifact again")
    return read_tensors(path)[0], header


def _read_header(folder: Path) -> dict[str, Any]:
    try:
        header = json.loads((folder / RECIPE).read_text())
    except (OSError, UnicodeDecodeError):
        raise CounterpointError(
            f"'{folder}' has no readable {RECIPE}; name the folder of a fitted model or policy"
        ) from None
    except json.JSONDecodeError:
        raise CounterpointError(f"'{folder / RECIPE}' is not JSON (damaged); save the artifact again") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CounterpointError(
            f"'{folder / RECIPE}' is not a {FORMAT} recipe; name the folder of a fitted model or policy"
        )
    return header


def device_of(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise CounterpointError(f"device '{name}' is not known; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise CounterpointError(f"device '{name}' is not supported; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CounterpointError("no CUDA device is available here; use --device cpu")
    return device
