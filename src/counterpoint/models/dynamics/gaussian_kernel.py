"""One GPU kernel for a step of a small Gaussian network: what lies between its layers never leaves the chip.

    s' = s + m + c·(μ(x) + σ(x)·u),    x the standardised context, two hidden layers, m and c mean and unit of s' − s

A planner takes billions of such steps, and layer by layer nearly all of its time goes into writing and reading hidden
layers. Products are of three TF32 parts each, which is single precision but for the last digits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from counterpoint.models.dynamics.base import HeadNetwork
from counterpoint.nets.laws import LARGEST_LOG_SCALE
from counterpoint.nets.stacked import StackedLinear

ROWS = 64
"""Rows of one member that a block of threads takes."""
WIDEST = 128
"""Hidden units whose weights fit on the chip."""


def layers_that_fit(network: HeadNetwork) -> list[StackedLinear]:
    """The three linear layers of a network that the kernel can do; none of another."""
    kinds = [type(layer) for layer in network.net.layers]
    if kinds != [StackedLinear, nn.ReLU, StackedLinear, nn.ReLU, StackedLinear]:
        return []
    linear = [layer for layer in network.net.layers if isinstance(layer, StackedLinear)]
    return linear if max(layer.weight.shape[1] for layer in linear) <= WIDEST else []


@torch.no_grad()
def gaussian_step(
    network: HeadNetwork, layers: list[StackedLinear], context: Tensor, state: Tensor, noise: Tensor
) -> Tensor:
    """The next state of every row [members, rows, columns]."""
    context, state, noise = context.contiguous(), state.contiguous(), noise.contiguous()
    members, rows, told = context.shape
    after, (first, second, last) = torch.empty_like(state), layers
    kernel: Any = _step
    kernel[(triton.cdiv(rows, ROWS), members)](
        context, state, noise, after,
        first.weight, first.bias, second.weight, second.bias, last.weight, last.bias,
        network.context.mean, network.context.scale, network.y.mean, network.y.scale,
        rows, told, first.weight.shape[2], second.weight.shape[2], network.size,
        _tile(told), _tile(first.weight.shape[2]), _tile(second.weight.shape[2]), _tile(network.size),
        ROWS, LARGEST_LOG_SCALE,
    )  # fmt: skip
    return after


def _tile(width: int) -> int:
    """The power of two that holds a width; a matrix product has at least sixteen."""
    return max(1 << (width - 1).bit_length(), 16)


@triton.jit
def _step(
    context, state, noise, after, weight1, bias1, weight2, bias2, weight3, bias3,
    context_mean, context_scale, y_mean, y_scale,
    rows, told_width: tl.constexpr, width1: tl.constexpr, width2: tl.constexpr, size_width: tl.constexpr,
    told_tile: tl.constexpr, tile1: tl.constexpr, tile2: tl.constexpr, size_tile: tl.constexpr,
    block: tl.constexpr, bound: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * block + tl.arange(0, block)
    told, size = tl.arange(0, told_tile), tl.arange(0, size_tile)
    hidden1, hidden2 = tl.arange(0, tile1), tl.arange(0, tile2)
    at, inside = (member * rows + row)[:, None], (row < rows)[:, None]

    x = tl.load(context + at * told_width + told, mask=inside & (told < told_width), other=0.0)
    mean = tl.load(context_mean + member * told_width + told, mask=told < told_width, other=0.0)
    scale = tl.load(context_scale + member * told_width + told, mask=told < told_width, other=1.0)
    x = (x - mean[None, :]) / scale[None, :]

    w = tl.load(
        weight1 + (member * told_width + told[:, None]) * width1 + hidden1[None, :],
        mask=(told[:, None] < told_width) & (hidden1[None, :] < width1), other=0.0,
    )  # fmt: skip
    b = tl.load(bias1 + member * width1 + hidden1, mask=hidden1 < width1, other=0.0)
    h = tl.maximum(tl.dot(x, w, input_precision="tf32x3") + b[None, :], 0.0)

    w = tl.load(
        weight2 + (member * width1 + hidden1[:, None]) * width2 + hidden2[None, :],
        mask=(hidden1[:, None] < width1) & (hidden2[None, :] < width2), other=0.0,
    )  # fmt: skip
    b = tl.load(bias2 + member * width2 + hidden2, mask=hidden2 < width2, other=0.0)
    h = tl.maximum(tl.dot(h, w, input_precision="tf32x3") + b[None, :], 0.0)

    last = weight3 + (member * width2 + hidden2[:, None]) * (2 * size_width) + size[None, :]
    known = (hidden2[:, None] < width2) & (size[None, :] < size_width)
    b = tl.load(bias3 + member * 2 * size_width + size, mask=size < size_width, other=0.0)
    centre = tl.dot(h, tl.load(last, mask=known, other=0.0), input_precision="tf32x3") + b[None, :]
    b = tl.load(bias3 + member * 2 * size_width + size_width + size, mask=size < size_width, other=0.0)
    raw = tl.dot(h, tl.load(last + size_width, mask=known, other=0.0), input_precision="tf32x3") + b[None, :]
    deviation = tl.exp(bound * (2 * tl.sigmoid(2 * raw / bound) - 1))

    own, shown = at * size_width + size[None, :], inside & (size[None, :] < size_width)
    u = tl.load(noise + own, mask=shown, other=0.0)
    s = tl.load(state + own, mask=shown, other=0.0)
    mean = tl.load(y_mean + member * size_width + size, mask=size < size_width, other=0.0)
    scale = tl.load(y_scale + member * size_width + size, mask=size < size_width, other=0.0)
    tl.store(after + own, s + ((centre + deviation * u) * scale[None, :] + mean[None, :]), mask=shown)
