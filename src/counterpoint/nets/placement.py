"""The device of a module, stated once, and the comparison where two modules meet."""

from collections.abc import Iterable
from itertools import chain
from typing import Protocol

import torch
from torch import nn

from counterpoint.core.errors import CounterpointError


class Placed(Protocol):
    """Anything that says on which device it is."""

    @property
    def device(self) -> torch.device:
        """The device."""
        ...


class PlacedModule(nn.Module):
    """A module that says on which device it is."""

    @property
    def device(self) -> torch.device:
        """The device of the first parameter, or of the first buffer of a module without parameters."""
        return next(chain(self.parameters(), self.buffers())).device


def common_device(modules: Iterable[Placed], what: str) -> torch.device:
    """The device of all modules; modules on different devices are refused."""
    devices = list(dict.fromkeys(module.device for module in modules))
    if len(devices) > 1:
        names = " and ".join(map(str, devices))
        raise CounterpointError(f"{what} are on {names}; move all to one device with .to('{devices[0]}')")
    return devices[0]
