"""The chain of `counterpoint demo`: data, four methods, returns in the simulator, tables and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from counterpoint.cli.console import say, show, watching
from counterpoint.cli.demo import Demo
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
from counterpoint.learners.methods import QUICK_SEARCH, SMALL_BICOGAN, unselected
from counterpoint.models.scm.density import BRIEF, DensitySCM
from counterpoint.nets.training import Schedule
from counterpoint.ope.model_based import returns, true_returns
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
    """Return the methods that are compared, at `length` times their usual number of updates.

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


def run_demo(demo: Demo) -> None:
    """Learn with four methods on every data set, evaluate them, and write tables and figures."""
    if demo.seeds < 1:
        raise CounterpointError(f"{demo.seeds} data sets show nothing; set --seeds to 1 or more")
    task = CartPole()
    jobs = [_job(demo, task, i) for i in range(demo.seeds)]
    say(f"{demo.seeds} data sets of {len(jobs[0].data)} rows; four methods; returns up to {task.ceiling:g}\n")
    rows: list[dict[str, Any]] = []
    first: dict[str, Policy] = {}
    with watching(demo.run, demo.saving) as monitor:
        for name, learner in arms(demo.length).items():
            learned = learner.fit_many(jobs, task, monitor.stage(name), demo.device)
            rows += _evaluate(demo, name, learner, learned, task)
            first[name] = learned[0].selected
    _write(demo, rows, task)
    _one_episode(demo, first, task)


def _job(demo: Demo, task: CartPole, index: int) -> Job:
    seed = derive(demo.seed, "demo", index)
    return Job(simulate(task, random_policy(task), demo.trials, 20, derive(seed, "data")), seed)


def _evaluate(
    demo: Demo, name: str, learner: PolicyLearner, learned: Sequence[PolicyCheckpoints], task: CartPole
) -> list[dict[str, Any]]:
    policies = [result.selected for result in learned]
    scores = true_returns(policies, task.at_evaluation(), demo.evaluation_trials, derive(demo.seed, "evaluation"))
    for i, policy in enumerate(policies):
        policy.save(demo.run / "policies" / f"{recipe_hash(learner)}-{i}")
    return [{"method": name, "seed": i, "return": float(score)} for i, score in enumerate(scores.mean(1))]


def _write(demo: Demo, rows: list[dict[str, Any]], task: CartPole) -> None:
    table = [_summary(name, [row["return"] for row in rows if row["method"] == name]) for name in arms(demo.length)]
    write_csv(rows, demo.run / "results.csv")
    settings = {"trials": demo.trials, "seeds": demo.seeds, "seed": demo.seed, "length": demo.length}
    write_json({**settings, **provenance()}, demo.run / "settings.json")
    demo_figure(rows, demo.run / "returns.png", random_return=_random_return(demo, task), ceiling=task.ceiling)
    say("")
    show(table, f"return of {demo.evaluation_trials} episodes, over {demo.seeds} data sets of {demo.trials} trials")
    say(f"every seed in {demo.run / 'results.csv'}, figure in {demo.run / 'returns.png'}, policies beside them")


def _one_episode(demo: Demo, policies: Mapping[str, Policy], task: CartPole) -> None:
    """Draw an episode of every policy of the first data set, with the same start and noise; print the searched rule."""
    seed, simulator = derive(demo.seed, "episode"), TaskSimulator(task.at_evaluation())
    start = task.initial(1, generator(seed, "start"))[None]
    paths = {}
    for name, policy in policies.items():
        rollout = Rollout(simulator, task, policy.to("cpu").actor())
        steps = rollout(start, simulator.fresh(1, seed), task.horizon)
        paths[name] = torch.stack([step.next_state[0, 0] for step in steps]).tolist()
    episodes_figure(paths, task.state_names, ("position", "angle"), demo.run / "episodes.png")
    searched = policies[SEARCH]
    assert isinstance(searched, SearchedPolicy)
    say(f"\nthe rule that the search found on the first data set:\n{searched.explain()}")
    say(f"one episode under each policy in {demo.run / 'episodes.png'}")


def _summary(name: str, scores: list[float]) -> dict[str, Any]:
    return {"method": name, "mean": sum(scores) / len(scores), "interquartile mean": float(iqm(scores)),
            "lowest": min(scores), "highest": max(scores)}  # fmt: skip


def _random_return(demo: Demo, task: CartPole) -> float:
    random = generator(demo.seed, "random policy")
    count = 100

    def act(state: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return task.actions.sample(count, random)[None]

    return float(returns(act, task.at_evaluation(), 1, count, demo.seed).mean())
