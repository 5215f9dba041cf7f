"""The one minibatch loop: members keep to themselves, seeds decide, a stopped run goes on as if it had not stopped."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.core.artifacts import read_tensors, write_tensors
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.nets.learner import StackTraining
from counterpoint.nets.optimizers import adam, clip_members
from counterpoint.nets.stacked import StackedMLP, initialise, unstack
from counterpoint.nets.training import Monitor, Schedule, Trained, train


class Regression(StackTraining):
    """Member k learns the sine of its inputs; `scores` are what its validations say, one list a member."""

    x: Tensor

    def __init__(self, seeds: Sequence[int], scores: Sequence[Sequence[float]] = ()) -> None:
        super().__init__()
        self.net = StackedMLP(len(seeds), 2, (8,), 1, batch_norm=True)
        initialise(self.net, seeds)
        tables = [torch.randn(40, 2, generator=generator(seed, "table")) for seed in seeds]
        self.register_buffer("x", torch.stack(tables), persistent=False)
        self.scores, self.checks = scores, 0
        self.seen: list[dict[str, Tensor]] = []
        self.rates: list[float] = []
        self.optimizer = adam(self.net.parameters(), 1e-2)

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        return {"rows": torch.randint(40, (steps, 16), generator=random)}

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.x.gather(1, draw["rows"][..., None].expand(-1, -1, 2))
        loss = (self.net(x)[..., 0] - x[..., 0].sin()).square().mean(1)
        self.optimizer.zero_grad()
        loss.sum().backward()
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        return {"loss": loss.detach()}

    def optimizers(self) -> Sequence[Optimizer]:
        return (self.optimizer,)

    def network(self) -> nn.Module:
        return self.net

    def score(self) -> Tensor:
        self.seen.append({name: tensor.clone() for name, tensor in self.net.state_dict().items()})
        self.checks += 1
        return torch.tensor([row[self.checks - 1] for row in self.scores])


def run(
    seeds: Sequence[int], schedule: Schedule, scores: Sequence[Sequence[float]] = (), **monitor: Any
) -> tuple[Regression, Trained]:
    learner = Regression(seeds, scores)
    return learner, train(learner, schedule, seeds, "sine", Monitor(**monitor))


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def message(call: Any) -> str:
    with pytest.raises(CounterpointError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def stopping_at(step: int) -> Any:
    def report(stage: str, done: int, total: int) -> None:
        if done >= step:
            raise KeyboardInterrupt

    return report


def test_a_member_trains_the_same_alone_and_in_a_stack() -> None:
    schedule = Schedule(steps=130, rate="one-cycle")
    together, _ = run([5, 6, 7], schedule)
    for k, seed in enumerate([5, 6, 7]):
        alone, _ = run([seed], schedule)
        cut = unstack(together.net.state_dict(), 3)[k]
        for name, tensor in alone.net.state_dict().items():
            torch.testing.assert_close(cut[name], tensor, rtol=0, atol=1e-6)


def test_the_seed_decides_the_weights() -> None:
    schedule = Schedule(steps=60)
    assert equal(run([3], schedule)[1].last, run([3], schedule)[1].last)
    assert not equal(run([3], schedule)[1].last, run([4], schedule)[1].last)


def test_the_minibatches_do_not_depend_on_how_often_one_looks() -> None:
    often, rarely = Schedule(steps=60, log_every=7), Schedule(steps=60, log_every=60)
    assert equal(run([3], often)[1].last, run([3], rarely)[1].last)


def test_training_learns() -> None:
    _, trained = run([0], Schedule(steps=200, log_every=1))
    losses = [row["loss"] for row in trained.log]
    assert sum(losses[-20:]) < 0.3 * sum(losses[:20])


def test_every_member_gets_the_weights_of_its_own_best_score() -> None:
    scores = [[3, 1, 2, 4], [4, 3, 2, 1], [1, 2, 3, 4]]
    learner, trained = run([0, 1, 2], Schedule(steps=40, check_every=10), scores)
    assert trained.best_score.tolist() == [1, 1, 1]
    assert trained.best_step.tolist() == [20, 40, 10]
    for k, check in enumerate([1, 3, 0]):
        kept = unstack(learner.net.state_dict(), 3)[k]
        assert equal(kept, unstack(learner.seen[check], 3)[k])
    assert equal(trained.last, learner.seen[3])
    assert not equal(trained.last, learner.net.state_dict())


def test_a_member_out_of_patience_keeps_its_weights_while_others_train() -> None:
    scores = [[1, 2, 3, 0, 0, 0], [5, 4, 3, 2, 3, 4]]
    learner, trained = run([0, 1], Schedule(steps=100, check_every=10, patience=2), scores)
    assert trained.best_score.tolist() == [1, 2]
    assert trained.best_step.tolist() == [10, 40]
    assert learner.checks == 6
    assert equal(unstack(learner.net.state_dict(), 2)[0], unstack(learner.seen[0], 2)[0])


def test_without_checks_the_last_weights_stay() -> None:
    learner, trained = run([0], Schedule(steps=30))
    assert equal(trained.last, learner.net.state_dict())


def test_a_score_that_is_not_a_number_is_never_best() -> None:
    _, trained = run([0], Schedule(steps=30, check_every=10), [[2, math.nan, 3]])
    assert trained.best_step.tolist() == [10]


def test_rate_factors_by_hand() -> None:
    assert [Schedule(steps=10).factor(step) for step in (0, 5, 9)] == [1, 1, 1]
    assert [Schedule(steps=10, rate="linear").factor(step) for step in (0, 5, 9)] == pytest.approx([1, 0.5, 0.1])
    cycle = Schedule(steps=100, rate="one-cycle")
    assert [cycle.factor(step) for step in (0, 15, 30, 65, 100)] == pytest.approx([0.04, 0.52, 1, 0.5, 0])


def test_the_optimizer_runs_at_the_scheduled_rate() -> None:
    learner, _ = run([0], Schedule(steps=4, rate="linear"))
    assert learner.rates == pytest.approx([1e-2, 7.5e-3, 5e-3, 2.5e-3])


def test_every_member_is_clipped_by_its_own_norm() -> None:
    wide, narrow = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2, 1, 1))
    wide.grad = torch.tensor([[3.0, 0.0], [0.3, 0.0]])
    narrow.grad = torch.tensor([[[4.0]], [[0.4]]])
    clip_members([wide, narrow], 1.0)
    torch.testing.assert_close(wide.grad, torch.tensor([[0.6, 0.0], [0.3, 0.0]]), rtol=0, atol=1e-6)
    torch.testing.assert_close(narrow.grad, torch.tensor([[[0.8]], [[0.4]]]), rtol=0, atol=1e-6)


SCORES = [[5, 4, 3, 2, 1, 0, 1], [1, 2, 3, 4, 5, 6, 7]]
LONG = Schedule(steps=340, check_every=50, rate="one-cycle", log_every=30)


class CountedRegression(Regression):
    """Its place in the list of scores is a buffer, so that a resumed run asks for the right one."""

    count: Tensor

    def __init__(self, seeds: Sequence[int], scores: Sequence[Sequence[float]] = ()) -> None:
        super().__init__(seeds, scores)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def score(self) -> Tensor:
        self.count += 1
        return torch.tensor([row[int(self.count) - 1] for row in self.scores])


def counted(**monitor: Any) -> tuple[CountedRegression, Trained]:
    learner = CountedRegression([8, 9], SCORES)
    return learner, train(learner, LONG, [8, 9], "counted", Monitor(**monitor))


@pytest.mark.parametrize("step", [30, 60, 199, 300, 340])
def test_a_stopped_run_goes_on_to_the_same_bits(step: int, tmp_path: Path) -> None:
    whole, expected = counted(folder=tmp_path / "whole", save_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        counted(folder=tmp_path / "cut", save_seconds=0.0, report=stopping_at(step))
    steps: list[int] = []
    again, trained = counted(
        folder=tmp_path / "cut", save_seconds=0.0, resume=True, report=lambda stage, done, total: steps.append(done)
    )
    assert equal(trained.last, expected.last)
    assert equal(again.state_dict(), whole.state_dict())
    assert torch.equal(trained.best_step, expected.best_step)
    assert trained.log == expected.log
    names = ["fit.log.jsonl", "fit.checkpoint.safetensors"]
    assert all((tmp_path / "cut" / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in names)
    if step > 30:
        assert steps[0] > 30, "the run began again instead of going on"


def test_a_finished_run_resumes_to_its_end_without_an_update(tmp_path: Path) -> None:
    _, expected = counted(folder=tmp_path)
    learner, trained = counted(folder=tmp_path, resume=True)
    assert equal(trained.last, expected.last)
    assert learner.rates == []


def test_without_resume_a_run_begins_again(tmp_path: Path) -> None:
    _, expected = counted(folder=tmp_path)
    learner, trained = counted(folder=tmp_path)
    assert len(learner.rates) == LONG.steps
    assert equal(trained.last, expected.last)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    run([0], Schedule(steps=10), folder=tmp_path)
    other = lambda: train(Regression([0]), Schedule(steps=10), [0], "cosine", Monitor(folder=tmp_path, resume=True))
    assert "fit.checkpoint.safetensors' belongs to another recipe" in message(other)


def test_a_checkpoint_with_other_tensors_is_refused(tmp_path: Path) -> None:
    run([0], Schedule(steps=10), folder=tmp_path)
    path = tmp_path / "fit.checkpoint.safetensors"
    tensors, notes = read_tensors(path)
    gone = next(name for name in tensors if name.startswith("learner/"))
    write_tensors(path, {name: tensor for name, tensor in tensors.items() if name != gone}, notes)
    again = lambda: run([0], Schedule(steps=10), folder=tmp_path, resume=True)
    assert "fit.checkpoint.safetensors' does not fit this version" in message(again)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_checkpoint_is_one_line(share: float, tmp_path: Path) -> None:
    run([0], Schedule(steps=10), folder=tmp_path)
    path = tmp_path / "fit.checkpoint.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert "is damaged or not a safetensors file" in message(
        lambda: run([0], Schedule(steps=10), folder=tmp_path, resume=True)
    )


def test_a_loss_that_is_not_finite_names_member_and_step() -> None:
    learner = Regression([0, 1])
    learner.x[1] = math.inf
    text = message(lambda: train(learner, Schedule(steps=20, log_every=10), [0, 1], "inf", Monitor(name="model")))
    assert "model: the loss of member 1 is not finite at step 10" in text


def test_the_log_holds_every_members_loss(tmp_path: Path) -> None:
    _, trained = run([0, 1], Schedule(steps=25, log_every=10), folder=tmp_path, name="policy")
    written = [json.loads(line) for line in (tmp_path / "policy.log.jsonl").read_text().splitlines()]
    assert written == trained.log
    assert [(row["step"], row["member"]) for row in written] == [(s, k) for s in (10, 20, 25) for k in (0, 1)]
    assert all(row["loss"] > 0 for row in written)


def test_stages_name_their_files_and_nothing_is_written_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Monitor(folder=tmp_path).stage("model").stage("change").name == "model.change"
    run([0], Schedule(steps=10), save_seconds=0.0)
    assert list(tmp_path.iterdir()) == []
