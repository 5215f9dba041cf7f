"""One thread a process, and the shapes in the annotations checked at every call of the package."""

import sys

import torch
from jaxtyping import install_import_hook

assert not any(name.startswith("counterpoint") for name in sys.modules), "imported before its shapes could be checked"
install_import_hook("counterpoint", "shapes.check")

torch.set_num_threads(1)
