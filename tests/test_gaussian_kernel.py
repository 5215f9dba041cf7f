"""The kernel of a Gaussian step against the same step layer by layer, on a processor by Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch

from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.nets.stacked import initialise

CASES = [((64, 64), 4, 5, 70), ((20, 48), 2, 3, 7), ((128, 16), 7, 30, 64)]
"""Hidden widths, state columns, context columns, rows: whole tiles and parts of them."""
WIDE = [(129, 16), (64,), (32, 32, 32)]


def difference(hidden: tuple[int, int], size: int, told: int, rows: int, device: str) -> float:
    """The largest difference of the kernel's states from those of the layers, three members with units of their own."""
    from counterpoint.models.dynamics.gaussian_kernel import gaussian_step, layers_that_fit

    network = GaussianDynamics(3, hidden, batch_norm=False).build(size, told, 3).network
    initialise(network, [1, 2, 3])
    random = torch.Generator().manual_seed(0)
    for unit in (network.context, network.y):
        width = unit.mean.shape[-1]
        unit.take(torch.randn(3, 1, width, generator=random), torch.rand(3, 1, width, generator=random) + 0.5)
    context, state, noise = (torch.randn(3, rows, width, generator=random) for width in (told, size, size))
    network, (context, state, noise) = network.to(device), (x.to(device) for x in (context, state, noise))
    with torch.no_grad():
        plain = state + network.sample(context, noise)
    found = gaussian_step(network, layers_that_fit(network), context, state, noise)
    return float((found - plain).abs().max() / plain.abs().max())


@pytest.mark.parametrize("case", range(len(CASES)))
def test_kernel_is_the_step_layer_by_layer(case: int) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        assert difference(*CASES[case], device="cuda") < 1e-5
        return
    asked = [sys.executable, __file__, str(case)]  # The interpreter is asked for before triton is imported.
    told = subprocess.run(asked, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert float(told.stdout) < 1e-5


@pytest.mark.parametrize("hidden", WIDE)
def test_kernel_does_no_network_of_another_form(hidden: tuple[int, ...]) -> None:
    pytest.importorskip("triton")
    from counterpoint.models.dynamics.gaussian_kernel import layers_that_fit

    assert not layers_that_fit(GaussianDynamics(2, hidden, batch_norm=False).build(4, 5, 2).network)
    assert not layers_that_fit(GaussianDynamics(2, (16, 16), batch_norm=True).build(4, 5, 2).network)
    assert len(layers_that_fit(GaussianDynamics(2, (16, 16), batch_norm=False).build(4, 5, 2).network)) == 3


if __name__ == "__main__":
    print(difference(*CASES[int(sys.argv[1])], device="cpu"))
