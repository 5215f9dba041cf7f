"""Ctrl-C: a run is saved between two updates before it leaves, and goes on as if nothing had happened."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import counterpoint as cp
from counterpoint.nets.training import postponing_interrupts
from helpers.recipes import DENSITY, ROWS

SHAPES = False


def fit(folder: Path, resume: bool = False, report=lambda stage, done, total: None) -> cp.Schema:
    """Never saved by the clock."""
    recipe = replace(DENSITY, likelihood=cp.models.Likelihood(cp.Schedule(steps=200, check_every=20, log_every=20)))
    return recipe.fit(ROWS, monitor=cp.models.Monitor(folder, resume, report, save_seconds=1000.0))


def test_ctrl_c_saves_and_resuming_changes_nothing(tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 80:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "stopped", report=interrupt)
    assert list((tmp_path / "stopped").glob("*.checkpoint.safetensors"))
    steps: list[int] = []
    again = fit(tmp_path / "stopped", resume=True, report=lambda stage, done, total: steps.append(done))
    assert min(step for step in steps if step) > 80
    whole = fit(tmp_path / "whole")
    for name, tensor in whole.weights().items():
        assert torch.equal(tensor, again.weights()[name]), name


@pytest.fixture
def listening() -> Iterator[None]:
    """Ctrl-C heard, even where a shell started the tests in the background and told them to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_the_second_ctrl_c_stops_at_once() -> None:
    def stubborn() -> None:
        with postponing_interrupts() as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert asked.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the second one was postponed too")

    with pytest.raises(KeyboardInterrupt):
        stubborn()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
