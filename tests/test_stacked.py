"""A stack of K networks is K torch networks side by side, and a member never feels its neighbours."""

import pytest
import torch
from torch import Tensor, nn

from counterpoint.core.seeding import derive, generator
from counterpoint.nets.stacked import (
    StackedBatchNorm,
    StackedLinear,
    StackedMLP,
    Standardizer,
    initialise,
    per_member,
    stack,
    unstack,
    with_weights,
)
from counterpoint.policies.q import DuelingQ

MEMBERS, ROWS = 3, 17


def rows(width: int, seed: int = 0) -> Tensor:
    return torch.randn(MEMBERS, ROWS, width, generator=generator(seed, "rows"))


def plain_linear(layer: StackedLinear, member: int) -> nn.Linear:
    plain = nn.Linear(*layer.weight.shape[1:])
    plain.weight.data = layer.weight[member].detach().T.clone()
    plain.bias.data = layer.bias[member, 0].detach().clone()
    return plain


def plain_norm(layer: StackedBatchNorm, member: int) -> nn.BatchNorm1d:
    plain = nn.BatchNorm1d(layer.weight.shape[-1])
    plain.weight.data, plain.bias.data = (
        layer.weight[member, 0].detach().clone(),
        layer.bias[member, 0].detach().clone(),
    )
    return plain


def plain_network(stack: StackedMLP, member: int) -> nn.Sequential:
    """The member as torch's own layers."""
    layers: list[nn.Module] = []
    for layer in stack.layers:
        if isinstance(layer, StackedLinear):
            layers.append(plain_linear(layer, member))
        elif isinstance(layer, StackedBatchNorm):
            layers.append(plain_norm(layer, member))
        else:
            layers.append(type(layer)())
    return nn.Sequential(*layers)


def randomised(network: nn.Module, seed: int = 0) -> nn.Module:
    for i, parameter in enumerate(network.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=generator(seed, "parameter", i))
    return network


def test_linear_is_torchs_linear_member_by_member() -> None:
    layer, x = StackedLinear(MEMBERS, 5, 4), rows(5)
    initialise(layer, range(MEMBERS))
    for k in range(MEMBERS):
        torch.testing.assert_close(layer(x)[k], plain_linear(layer, k)(x[k]))


def test_batch_norm_is_torchs_in_training_and_after() -> None:
    layer = StackedBatchNorm(MEMBERS, 4)
    randomised(layer)
    plains = [plain_norm(layer, k) for k in range(MEMBERS)]
    for seed in range(5):
        x = 3 * rows(4, seed) + seed
        out = layer(x)
        for k, plain in enumerate(plains):
            torch.testing.assert_close(out[k], plain(x[k]))
    x, out = rows(4, 9), layer.eval()(rows(4, 9))
    for k, plain in enumerate(plains):
        torch.testing.assert_close(out[k], plain.eval()(x[k]))
        torch.testing.assert_close(layer.running_mean[k, 0], plain.running_mean)
        torch.testing.assert_close(layer.running_variance[k, 0], plain.running_var)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_mlp_is_torchs_layers_with_the_same_gradients(batch_norm: bool) -> None:
    stack = StackedMLP(MEMBERS, 5, (8, 6), 2, nn.ReLU, batch_norm)
    randomised(stack)
    x = rows(5)
    plains = [plain_network(stack, k) for k in range(MEMBERS)]
    out = stack(x)
    out.square().sum().backward()
    for k, plain in enumerate(plains):
        expected = plain(x[k])
        torch.testing.assert_close(out[k], expected, rtol=1e-4, atol=1e-4)
        expected.square().sum().backward()
        assert isinstance(stack.layers[0], StackedLinear)
        assert isinstance(plain[0], nn.Linear)
        torch.testing.assert_close(
            stack.layers[0].weight.grad[k].T, plain[0].weight.grad, rtol=1e-3, atol=1e-2 if batch_norm else 1e-3
        )


def test_initial_weights_are_the_seeds_own() -> None:
    alone, beside = StackedMLP(1, 4, (8,), 2), StackedMLP(MEMBERS, 4, (8,), 2)
    initialise(alone, [11])
    initialise(beside, [10, 11, 12])
    first, cut, _ = unstack(beside.state_dict(), MEMBERS)
    assert all(torch.equal(cut[name], tensor) for name, tensor in alone.state_dict().items())
    assert not any(torch.equal(first[name], tensor) for name, tensor in alone.state_dict().items())


def test_initial_weights_fill_torchs_interval() -> None:
    layer = StackedLinear(1, 25, 400)
    initialise(layer, [0])
    for parameter in (layer.weight, layer.bias):
        assert parameter.abs().max() <= 0.2
        torch.testing.assert_close(parameter.std().item(), 0.2 / 3**0.5, rtol=0.1, atol=0.0)


def test_a_member_does_not_feel_its_neighbours() -> None:
    stack, x = StackedMLP(MEMBERS, 5, (8,), 2, batch_norm=True), rows(5)
    initialise(stack, range(MEMBERS))
    before = stack(x)
    changed = x.clone()
    changed[1] += 1.0
    after = stack(changed)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])


def test_cutting_keeps_several_networks_a_member_together() -> None:
    state = {"w": torch.arange(12).view(6, 2), "b": torch.arange(3)}
    cut = unstack(state, 3)
    assert cut[1]["w"].tolist() == [[4, 5], [6, 7]]
    assert [part["b"].tolist() for part in cut] == [[0], [1], [2]]
    later = stack(cut[1:])
    assert later["w"].tolist() == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert later["b"].tolist() == [1, 2]
    assert per_member(torch.tensor([1.0, 2.0]), torch.zeros(4, 5)).tolist() == [[1.0], [1.0], [2.0], [2.0]]


def test_a_share_of_a_stack_answers_as_it_did_in_the_stack() -> None:
    whole, x = StackedMLP(2 * MEMBERS, 4, (8,), 2), torch.randn(2 * MEMBERS, ROWS, 4, generator=generator(1))
    initialise(whole, range(2 * MEMBERS))
    shares = unstack(whole.state_dict(), 2)
    parts = [with_weights(StackedMLP(MEMBERS, 4, (8,), 2), share) for share in shares]
    torch.testing.assert_close(torch.cat([part(half) for part, half in zip(parts, x.chunk(2), strict=True)]), whole(x))
    assert not any(part.training for part in parts)
    before = whole(x)
    for share in shares:
        for tensor in share.values():
            tensor.add_(1.0)
    assert torch.equal(whole(x), before), "a share is a copy, not a window on the stack"


def test_a_standardizer_knows_every_members_own_units() -> None:
    units, mean = Standardizer(2, 1), torch.tensor([1.0, -2.0]).view(2, 1, 1)
    values = torch.tensor([[[3.0], [1.0]], [[-2.0], [8.0]]])
    assert torch.equal(units(values), values)
    units.take(mean, torch.tensor([2.0, 5.0]).view(2, 1, 1))
    assert units(values).flatten().tolist() == [1.0, 0.0, 0.0, 2.0]
    assert torch.equal(units.inverse(units(values)), values)
    assert set(units.state_dict()) == {"mean", "scale"}


def test_dueling_q_is_value_plus_centred_advantage() -> None:
    network, state = DuelingQ(MEMBERS, 3, (8,), 4), rows(3)
    initialise(network, range(MEMBERS))
    network.states.mean += 0.5
    network.states.scale *= 2.0
    raw = network.net((state - 0.5) / 2.0)
    value, advantage = raw[..., 0], raw[..., 1:]
    values = network(state)
    torch.testing.assert_close(values.mean(-1), value)
    torch.testing.assert_close(values - values.mean(-1, keepdim=True), advantage - advantage.mean(-1, keepdim=True))
    assert (values[..., 0] - values[..., 1]).abs().min() > 0


def test_children_of_a_seed_are_named_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    assert derive(0, "policy") == 71734746407540285 == derive(0, "policy")
    assert len({derive(0, "policy"), derive(1, "policy"), derive(0, "model"), derive(0, "policy", 1)}) == 4
    assert torch.equal(torch.rand(3, generator=generator(5)), torch.rand(3, generator=generator(5)))
    assert torch.equal(torch.get_rng_state(), before)
