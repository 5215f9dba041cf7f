"""`counterpoint demo`: the whole chain on 50 trials, in a few minutes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

from counterpoint.cli.console import Saving, say, show, watching
from counterpoint.core.artifacts import recipe_hash
from counterpoint.core.errors import CounterpointError
from counterpoint.core.provenance import provenance
from counterpoint.core.seeding import derive, generator
from counterpoint.core.statistics import iqm
from counterpoint.core.tables import write_csv, write_json
from counterpoint.data.jobs import Job
from counterpoint.learners.base import PolicyCheckpoints, PolicyLearner
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.methods import (
    QUICK_SEARCH,
    SMALL_BICOGAN,
    unselected,
)
from counterpoint.models.scm.density import BRIEF, DensitySCM
from counterpoint.nets.training import Schedule
from counterpoint.ope.true_return import returns, true_returns
from counterpoint.page.returns import demo_figure, episodes_figure
from counterpoint.policies.base import Policy
from counterpoint.policies.searched import SearchedPolicy
from counterpoint.simulation.rollout import Rollout, TaskSimulator
from counterpoint.simulation.selection import CheckpointSelection
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.cartpole import CartPole

CTRL_G, SEARCH = "CTRL_g, default SCM", "CTRL_g + search"
"""Names of the compared methods."""


def arms(length: float) -> dict[str, PolicyLearner]:
    """What is compared, at `length` times its usual number of updates.

    The BiCoGAN has the paper's shape at a quarter of its widths, so that two cores finish it in a minute.
    """
    steps = int(3000 * length)
    learner = D3QN((128, 128), Schedule(steps=steps, check_every=max(steps // 10, 1), rate="linear"), batch=128)
    training = replace(SMALL_BICOGAN.training, schedule=Schedule(steps=int(1000 * length)))
    bicogan = replace(SMALL_BICOGAN, training=training)
    exact = DensitySCM(likelihood=replace(BRIEF, schedule=replace(BRIEF.schedule, steps=int(1000 * length))))
    return {
        "D3QN, real rows": unselected(learner),
        "CTRL_g, small BiCoGAN": CTRLg(bicogan, learner=learner, selection=CheckpointSelection(starts=8)),
        CTRL_G: CTRLg(exact, learner=learner, selection=CheckpointSelection(starts=8)),
        SEARCH: replace(QUICK_SEARCH, model=exact, schedule=Schedule(max(int(15 * length), 1), 5, log_every=5)),
    }


@dataclass(frozen=True)
class Demo:
    """D3QN, CTRL_g and a search inside the SCM on 50 logged trials of noisy CartPole. Writes a table, two figures and
    the policies, and says the searched rule in words."""

    run: Path = Path("runs/demo")
    """Run folder."""
    trials: int = 50
    """Logged trials of 20 steps."""
    seeds: int = 4
    """Data sets and training seeds; each method trains all of them in one stack."""
    length: float = 1.0
    """Multiplies the length of every training run; smaller is quicker and worse."""
    evaluation_trials: int = 10
    """Episodes each policy is tried in."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    saving: tyro.conf.OmitArgPrefixes[Saving] = Saving()

    def execute(self) -> None:
        if self.seeds < 1:
            raise CounterpointError(f"{self.seeds} data sets show nothing; set --seeds to 1 or more")
        task = CartPole()
        jobs = [self._job(task, i) for i in range(self.seeds)]
        say(f"{self.seeds} data sets of {len(jobs[0].data)} rows; four methods; returns up to {task.ceiling:g}\n")
        rows: list[dict[str, Any]] = []
        first: dict[str, Policy] = {}
        with watching(self.run, self.saving) as monitor:
            for name, learner in arms(self.length).items():
                learned = learner.fit_many(jobs, task, monitor.stage(name), self.device)
                rows += self._try(name, learner, learned, task)
                first[name] = learned[0].selected
        self._write(rows, task)
        self._one_episode(first, task)

    def _job(self, task: CartPole, index: int) -> Job:
        seed = derive(self.seed, "demo", index)
        return Job(simulate(task, random_policy(task), self.trials, 20, derive(seed, "data")), seed)

    def _try(
        self, name: str, learner: PolicyLearner, learned: Sequence[PolicyCheckpoints], task: CartPole
    ) -> list[dict[str, Any]]:
        policies = [result.selected for result in learned]
        scores = true_returns(policies, task.at_evaluation(), self.evaluation_trials, derive(self.seed, "evaluation"))
        for i, policy in enumerate(policies):
            policy.save(self.run / "policies" / f"{recipe_hash(learner)}-{i}")
        return [{"method": name, "seed": i, "return": float(score)} for i, score in enumerate(scores.mean(1))]

    def _write(self, rows: list[dict[str, Any]], task: CartPole) -> None:
        table = [
            self._summary(name, [row["return"] for row in rows if row["method"] == name]) for name in arms(self.length)
        ]
        write_csv(rows, self.run / "results.csv")
        settings = {"trials": self.trials, "seeds": self.seeds, "seed": self.seed, "length": self.length}
        write_json({**settings, **provenance()}, self.run / "settings.json")
        demo_figure(rows, self.run / "returns.png", random_return=self._random_return(task), ceiling=task.ceiling)
        say("")
        show(table, f"return of {self.evaluation_trials} episodes, over {self.seeds} data sets of {self.trials} trials")
        say(f"every seed in {self.run / 'results.csv'}, figure in {self.run / 'returns.png'}, policies beside them")

    def _one_episode(self, policies: Mapping[str, Policy], task: CartPole) -> None:
        """One start and one run of luck under each policy of the first data set; the searched rule in words."""
        seed, simulator = derive(self.seed, "episode"), TaskSimulator(task.at_evaluation())
        start = task.initial(1, generator(seed, "start"))[None]
        paths = {}
        for name, policy in policies.items():
            rollout = Rollout(simulator, task, policy.to("cpu").actor())
            steps = rollout(start, simulator.fresh(1, seed), task.horizon)
            paths[name] = torch.stack([step.next_state[0, 0] for step in steps]).tolist()
        episodes_figure(paths, task.state_names, ("position", "angle"), self.run / "episodes.png")
        searched = policies[SEARCH]
        assert isinstance(searched, SearchedPolicy)
        say(f"\nthe rule that the search found on the first data set:\n{searched.explain()}")
        say(f"one episode under each policy in {self.run / 'episodes.png'}")

    def _summary(self, name: str, scores: list[float]) -> dict[str, Any]:
        return {"method": name, "mean": sum(scores) / len(scores), "interquartile mean": float(iqm(scores)),
                "lowest": min(scores), "highest": max(scores)}  # fmt: skip

    def _random_return(self, task: CartPole) -> float:
        random = generator(self.seed, "random policy")
        count = 100

        def act(state: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
            return task.actions.sample(count, random)[None]

        return float(returns(act, task.at_evaluation(), 1, count, self.seed).mean())
