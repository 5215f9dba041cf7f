"""A GPU that is not there: tensors sent to it stay where they are, and whatever mixes them with others is refused.

A tensor on the pretended GPU carries a mark. Results of marked tensors are marked; an operation on a marked tensor and
on one without a mark is refused as a GPU refuses it, except for what may be mixed: single numbers, indices and copies.
`is_cuda` stays false, so that no graph of a GPU's work is captured.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

GPU, CPU = torch.device("cuda:0"), torch.device("cpu")
MARK = "_pretended"
MOVES = ("to", "cpu", "cuda")
COPIES = ("copy_", "__setitem__", "__set__", "swap_tensors", "_has_compatible_shallow_copy_type")
HOST_ONLY = ("numpy", "__array__")


def on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is on the pretended GPU."""
    return getattr(tensor, MARK, False)


def marked(tensor: Tensor, there: bool) -> Tensor:
    """A tensor on one side or the other; a new one where the mark of this one is another."""
    if on_gpu(tensor) == there:
        return tensor
    moved = tensor.clone()
    setattr(moved, MARK, there)
    return moved


NEW_PARAMETER = nn.Parameter.__new__


class PretendedGPU(TorchFunctionMode):
    """Marks what is sent to a GPU and refuses mixtures."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name, owner = dict(kwargs or {}), func.__name__, getattr(func, "__self__", None)
        if name == "__get__":
            return self._attribute(func, owner, args)
        if name in HOST_ONLY:
            if on_gpu(args[0]):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            return func(*args, **kwargs)
        if name in MOVES:
            return self._moved(func, name, args, kwargs)
        asked = kwargs.get("device")
        if asked is not None:
            kwargs["device"] = CPU
        given = tree_leaves((args[0],) if name == "__deepcopy__" else (args, kwargs))
        there = self._agreed(name, [x for x in given if isinstance(x, Tensor)])
        if asked is not None:
            there = torch.device(asked).type == "cuda"
        drawn = kwargs.get("generator")
        if drawn is not None and (getattr(drawn, "where", CPU).type == "cuda") != there:
            raise RuntimeError(f"{name}: the generator and the tensor are on different devices")
        result = func(*args, **kwargs)
        if there:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    setattr(leaf, MARK, True)
        if name == "__set__" and len(args) > 1 and isinstance(args[1], Tensor):
            setattr(args[0], MARK, on_gpu(args[1]))
        return result

    def _attribute(self, func: Any, owner: Any, args: Any) -> Any:
        tensor = args[0]
        result = func(*args)
        if owner is torch.Tensor.device:
            return GPU if on_gpu(tensor) else result
        if isinstance(result, Tensor) and on_gpu(tensor):
            setattr(result, MARK, True)
        return result

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any) -> Tensor:
        tensor, there = args[0], on_gpu(args[0])
        if name != "to":
            return marked(tensor, name == "cuda")
        places = [x for x in (*args[1:], *kwargs.values()) if isinstance(x, str | torch.device | Tensor)]
        if places:
            place = places[0]
            there = on_gpu(place) if isinstance(place, Tensor) else torch.device(place).type == "cuda"
        swap = lambda x: CPU if isinstance(x, str | torch.device) else x
        result = func(tensor, *map(swap, args[1:]), **{key: swap(x) for key, x in kwargs.items()})
        if result is not tensor:
            setattr(result, MARK, on_gpu(tensor))
        return marked(result, there)

    def _agreed(self, name: str, tensors: list[Tensor]) -> bool:
        """Where the result will be; refuses what a GPU refuses."""
        there = [on_gpu(x) for x in tensors]
        if not any(there):
            return False
        if name in COPIES or name == "__getitem__":
            if not there[0]:
                assert name != "__getitem__", "an index on the GPU, the tensor is not"
            return there[0]
        mixed = [tuple(x.shape) for x, gpu in zip(tensors, there, strict=True) if not gpu and x.dim() > 0]
        if mixed:
            raise RuntimeError(f"{name}: Expected all tensors to be on the same device, but {mixed} are not on cuda:0")
        return True


class PretendedGenerator(torch.Generator):
    """A generator that says it is on the device it was asked for."""

    where: torch.device

    def __new__(cls, device: Any = "cpu") -> "PretendedGenerator":
        made = super().__new__(cls, "cpu")
        made.where = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        return self.where


def new_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """A parameter where its numbers are; torch makes them below what a mode sees."""
    made = NEW_PARAMETER(cls, data, requires_grad)
    if data is not None:
        setattr(made, MARK, on_gpu(data))
    return made


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Inside the block `cuda` is a device."""
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),
        patch.object(torch, "Generator", PretendedGenerator),
        patch.object(nn.Parameter, "__new__", new_parameter),
        PretendedGPU(),
    ):
        yield
