"""Slots that commands share: never more than there are, the lowest rank first, free again when a holder dies."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from reproduction.executors import Joblib
from reproduction.gpu_sharing import LOGS, PIPES, shared_gpu
from reproduction.jobserver import JobServer, Slots
from reproduction.workers import Report, silent

SHAPES = False
SOON = 20.0


def until(told: Callable[[], bool], what: str) -> None:
    """Wait for something that is about to be true."""
    end = time.monotonic() + SOON
    while not told():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def client(server: JobServer, rank: int = 0) -> Slots:
    return Slots(str(server.listener.address), rank)


def test_a_free_slot_goes_to_the_lowest_rank_that_waits():
    order: list[int] = []

    def ask(rank: int) -> None:
        with client(server, rank).slot():
            order.append(rank)

    with JobServer(1) as server:
        with client(server, 9).slot():
            threads = [threading.Thread(target=ask, args=(rank,)) for rank in (5, 1, 12)]
            for thread in threads:
                thread.start()
            until(lambda: len(server.waiting) == 3, "all three wait")
            assert not order
        for thread in threads:
            thread.join(SOON)
    assert order == [1, 5, 12]


def test_there_are_never_more_holders_than_slots():
    inside, most, lock = [0], [0], threading.Lock()

    def ask() -> None:
        with client(server).slot():
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.02)
            with lock:
                inside[0] -= 1

    with JobServer(2) as server:
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        until(lambda: server.free == 2, "all are given back")
    assert most == [2]


def test_a_holder_that_is_killed_gives_its_slot_back():
    ask = "with Slots.of_environment().slot(): print(1, flush=True); input()"
    code = f"from reproduction.jobserver import Slots\n{ask}"
    with JobServer(1) as server:
        environment = {**os.environ, **server.environment(3)}
        holder = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline().strip() == "1"
        assert server.free == 0
        holder.kill()
        holder.wait(SOON)
        until(lambda: server.free == 1, "the slot is free")
        holder.stdout.close()
        holder.stdin.close()


def test_commands_know_how_many_slots_are_taken_by_all_of_them():
    with JobServer(3) as server:
        asking = client(server)
        assert asking.taken() == 0
        with client(server, 1).slot(), client(server, 2).slot():
            assert client(server, 9).taken() == 2
        until(lambda: client(server).taken() == 0, "both are given back")
    assert asking.taken() == 0, "nobody answers any more"
    assert Slots().taken() == 0


def short_of_memory(path: Path, report: Report) -> int:
    """Finds the memory taken while a file is there, and counts in it how often."""
    if path.exists():
        path.write_text(path.read_text() + ".")
        raise torch.OutOfMemoryError("CUDA out of memory")
    return 7


def test_memory_that_another_command_holds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reproduction.workers.PATIENCE", 0.02)
    memory, outcomes = tmp_path / "memory", []
    memory.touch()
    with JobServer(2) as server:
        for name, value in server.environment(1).items():
            monkeypatch.setenv(name, value)
        command = threading.Thread(target=lambda: outcomes.extend(Joblib(1).run(short_of_memory, [memory], silent)))
        with client(server, 0).slot():
            command.start()
            until(lambda: len(memory.read_text()) > 5, "it tries for as long as the other one is at work")
            memory.unlink()
        command.join(SOON)
    assert outcomes == [(0, 7)]


def test_without_a_server_nobody_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COUNTERPOINT_JOBSERVER", raising=False)
    with Slots.of_environment().slot():
        pass


def note(path: Path, report: Report) -> int:
    """Begin and end of some work, on the clock that all processes share."""
    begun = time.monotonic()
    time.sleep(0.1)
    path.write_text(f"{begun} {time.monotonic()}")
    return os.getpid()


def test_two_commands_share_the_slots_of_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with JobServer(1) as server:
        for name, value in server.environment(1).items():
            monkeypatch.setenv(name, value)
        paths = [[tmp_path / f"{command}{item}" for item in range(3)] for command in range(2)]
        outcomes: list[list[tuple[int, object]]] = [[], []]
        commands = [
            threading.Thread(target=lambda c=c: outcomes[c].extend(Joblib(3).run(note, paths[c], silent)))
            for c in range(2)
        ]
        for command in commands:
            command.start()
        for command in commands:
            command.join(60)
    spans = sorted(tuple(map(float, path.read_text().split())) for own in paths for path in own)
    assert len(spans) == 6
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), "one at a time"
    workers = [{outcome for _, outcome in own} for own in outcomes]
    assert [len(own) for own in workers] == [1, 1], "a process that is warm is taken before another starts"


def test_a_worker_that_waits_long_for_a_slot_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reproduction.workers.IDLE", 0.05)
    with JobServer(1) as server:
        for name, value in server.environment(1).items():
            monkeypatch.setenv(name, value)
        outcomes: list[int] = []
        paths = [tmp_path / "first", tmp_path / "second"]
        command = threading.Thread(target=lambda: outcomes.extend(pid for _, pid in Joblib(1).run(note, paths, silent)))
        command.start()
        until(lambda: server.free == 0, "the first item is at work")
        with client(server, 0).slot():
            assert paths[0].exists()
            until(lambda: len(outcomes) == 1 and not alive(outcomes[0]), "its worker is gone")
        command.join(60)
    assert len(set(outcomes)) == 2, "and another one did the second"


def test_a_worker_that_has_another_item_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reproduction.workers.IDLE", 0.05)
    outcomes = [pid for _, pid in Joblib(1).run(note, [tmp_path / name for name in "abcd"], silent)]
    assert len(outcomes) == 4
    assert len(set(outcomes)) == 1


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


CONTROL = """#!/bin/sh
if [ "$1" = "-d" ]; then echo "start $CUDA_MPS_PIPE_DIRECTORY" >> {log}; exit {code}; fi
cat >> {log}
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A service that writes down what it is told."""
    program, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    program.write_text(CONTROL.format(log=log, code=0))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(PIPES, raising=False)
    return log


def test_processes_share_a_gpu_by_a_service_of_their_own(control: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reproduction.gpu_sharing.TRIAL", "")
    with shared_gpu() as shared:
        own = os.environ[PIPES]
        assert shared
        assert Path(own).is_dir()
        assert Path(os.environ[LOGS]).is_dir()
        with shared_gpu() as again:
            assert again, "a service that is there is used"
    assert PIPES not in os.environ
    assert control.read_text().split("\n") == [f"start {own}", "quit", ""]
    assert not Path(own).exists()


def test_a_service_that_does_not_serve_changes_nothing(control: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reproduction.gpu_sharing.TRIAL", "raise SystemExit(1)")
    with shared_gpu() as shared:
        assert not shared
        assert PIPES not in os.environ
    assert control.read_text().endswith("quit\n")
    program = control.parent / "nvidia-cuda-mps-control"
    program.write_text(CONTROL.format(log=control, code=1))
    with shared_gpu() as shared:
        assert not shared
    assert control.read_text().count("quit") == 1, "what did not start is not stopped"
    program.unlink()
    with shared_gpu() as shared:
        assert not shared
