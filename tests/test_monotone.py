"""Generators are strictly increasing in their own noise and deaf to the others."""

import pytest
import torch
from torch import Tensor, nn

from counterpoint.core.seeding import generator
from counterpoint.nets.monotone import LEAST_SLOPE, DiagonalGenerator, MonotoneLinear, PaperGenerator
from counterpoint.nets.stacked import initialise

MEMBERS, CONTEXT, SIZE, ROWS = 2, 3, 2, 64


def paper() -> PaperGenerator:
    return PaperGenerator(MEMBERS, CONTEXT, SIZE, (8, 12, 12))


def diagonal() -> DiagonalGenerator:
    return DiagonalGenerator(MEMBERS, CONTEXT, SIZE, (8, 8), 6)


def started(network: PaperGenerator | DiagonalGenerator) -> PaperGenerator | DiagonalGenerator:
    initialise(network, list(range(MEMBERS * network.per_member)))
    return network.eval()


def adverse(network: nn.Module, scale: float) -> nn.Module:
    """Every number that training can change, mostly below zero; not all, since two negatives would hide each other."""
    random = generator(5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_((scale * (torch.randn(parameter.shape, generator=random) - 1)).clamp(max=2.0))
    return network


def inputs() -> tuple[Tensor, Tensor]:
    random = generator(1)
    context = torch.randn(MEMBERS, ROWS, CONTEXT, generator=random)
    return context, 3 * torch.randn(MEMBERS, ROWS, SIZE, generator=random)


def jacobian(network: nn.Module) -> Tensor:
    """∂s'_i/∂u_j at every row, as [members, rows, i, j]."""
    context, noise = inputs()
    noise.requires_grad_()
    y = network(context, noise)
    return torch.stack([torch.autograd.grad(y[..., i].sum(), noise, retain_graph=True)[0] for i in range(SIZE)], 2)


@pytest.mark.parametrize("make", [paper, diagonal])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_every_state_rises_with_its_own_noise_and_no_other(make, scale):
    """Fails when `raw.exp()` in MonotoneLinear.weight becomes `raw`, or when batch norm loses its exponential scale."""
    network = started(make())
    slopes = jacobian(adverse(network, scale) if scale else network)
    own = slopes.diagonal(dim1=2, dim2=3)
    assert own.min() >= LEAST_SLOPE / 2
    assert (slopes - torch.diag_embed(own)).abs().max() == 0


@pytest.mark.parametrize("make", [paper, diagonal])
def test_the_exponential_is_what_makes_it_rise(make, monkeypatch):
    """The guarantee is not an accident of the points above: without w = e^v the same weights fall somewhere."""
    monkeypatch.setattr(MonotoneLinear, "weight", lambda self: self.raw * (self.free + self.rising))
    slopes = jacobian(adverse(started(make()), 1.0)).diagonal(dim1=2, dim2=3)
    assert slopes.min() < 0


@pytest.mark.parametrize("make", [paper, diagonal])
def test_bends_both_ways(make):
    """A ReLU network with positive weights is convex in u; this one is neither convex nor concave everywhere."""
    network, (context, _) = started(make()), inputs()
    grid = torch.linspace(-4, 4, 33)
    rows = context[:, :1].expand(-1, len(grid), -1)
    curvature = network(rows, grid[None, :, None].expand(MEMBERS, -1, SIZE)).diff(dim=1).diff(dim=1)
    assert curvature.min() < -1e-4
    assert curvature.max() > 1e-4


def test_the_law_of_the_noise_may_change_with_the_context():
    """The slope in u differs between contexts, so heteroscedastic noise can be represented."""
    own = jacobian(started(diagonal())).diagonal(dim1=2, dim2=3)
    assert (own.std(1) > 1e-3).all()


@pytest.mark.parametrize("make", [paper, diagonal])
def test_given_is_the_generator(make):
    network, (context, noise) = started(make()), inputs()
    torch.testing.assert_close(network.given(context)(noise), network(context, noise))


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_folded_it_is_the_same_function(scale):
    """Running statistics, exponentials, turned units and the skip: each moves the outcome of some row."""
    network, random = started(paper()), generator(7)
    for norm in network.norm:
        norm.running_mean.copy_(torch.randn(norm.running_mean.shape, generator=random))
        norm.running_variance.copy_(torch.rand(norm.running_variance.shape, generator=random) + 1e-5)
    network = adverse(network, scale) if scale else network
    context, noise = inputs()
    expected = network(context, noise).detach()
    found = network.folded()(context, noise)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


def test_batch_norm_of_the_generator_keeps_the_sign():
    network = adverse(started(paper()), 3.0)
    assert all(bool((norm.weight > 0).all()) for norm in network.norm)


def test_a_layer_narrower_than_the_state_still_carries_every_noise():
    network = PaperGenerator(1, 2, 5, (3, 4))
    initialise(network, [0])
    noise = torch.randn(1, 9, 5, generator=generator(0)).requires_grad_()
    y = network.eval()(torch.zeros(1, 9, 2), noise)
    assert torch.autograd.grad(y.sum(), noise)[0].min() > 0


def test_members_do_not_touch_each_other():
    """A member's initial weights and outputs depend on its own seed alone."""
    together, alone = diagonal(), DiagonalGenerator(1, CONTEXT, SIZE, (8, 8), 6)
    initialise(together, [0, 1, 7, 8])
    initialise(alone, [7, 8])
    context, noise = inputs()
    torch.testing.assert_close(together(context, noise)[1:], alone(context[1:], noise[1:]))
