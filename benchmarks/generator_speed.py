"""What a step in the paper's BiCoGAN costs: `python benchmarks/generator_speed.py --device cuda [--models 160]`.

The generator as it is trained, folded for rollouts, and folded with factors rounded to ten bits (TF32, on a GPU), in
one run on the same rows; errors are relative to double precision. The last line is JSON.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from counterpoint.core.provenance import provenance
from counterpoint.core.seeding import generator
from counterpoint.core.tables import markdown_table
from counterpoint.models.scm.bicogan import BiCoGAN
from counterpoint.nets.learner import tf32_products
from counterpoint.nets.monotone import PaperGenerator
from counterpoint.nets.stacked import StackedBatchNorm, initialise

STATE, CONTEXT = 4, 5
"""Columns of CartPole's state, and with its action."""


def started(models: int, device: str) -> PaperGenerator:
    """Untrained generators of the paper's widths, with the statistics of some rows."""
    network = PaperGenerator(models, CONTEXT, STATE, BiCoGAN().generator_hidden)
    initialise(network, list(range(models)))
    for norm in network.norm:
        assert isinstance(norm, StackedBatchNorm)
        norm.momentum = 1.0
    random = generator(0)
    with torch.no_grad():
        network(torch.randn(models, 256, CONTEXT, generator=random), torch.randn(models, 256, STATE, generator=random))
    return network.to(device).eval()


@torch.no_grad()
def timed(how: str, step: Callable[[], Tensor], truth: Tensor, steps: int) -> dict[str, Any]:
    """Seconds a step, and how far it is from the truth."""
    error = float((step().double() - truth).norm() / truth.norm())
    wait = torch.cuda.synchronize if truth.is_cuda else lambda: None
    wait()
    start_time = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return {"generator": how, "milliseconds a step": 1e3 * (time.perf_counter() - start_time) / steps, "error": error}


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    for name, number in (("models", 2), ("rows", 1920), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device is available here; use --device cpu")
    if min(options.models, options.rows, options.steps) < 1:
        parser.error("--models, --rows and --steps must be 1 or more")
    network, random = started(options.models, options.device), generator(1)
    inputs = [
        torch.randn(options.models, options.rows, width, generator=random).to(options.device)
        for width in (CONTEXT, STATE)
    ]
    with torch.no_grad():
        truth, folded = network.double()(*(table.double() for table in inputs)), network.float().folded()
    table = [timed("as trained", lambda: network(*inputs), truth, options.steps)]
    table.append(timed("folded", lambda: folded(*inputs), truth, options.steps))
    if options.device == "cuda":
        with tf32_products():
            table.append(timed("folded, TF32", lambda: folded(*inputs), truth, options.steps))
    print(markdown_table(table, formats={"milliseconds a step": ".2f", "error": ".1e"}))
    print(json.dumps({**vars(options), "table": table, **provenance()}))


if __name__ == "__main__":
    main()
