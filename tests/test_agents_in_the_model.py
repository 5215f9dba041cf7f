"""Another library's agent, trained inside a fitted SCM by Gymnasium's interface alone, acts well in the truth."""

from pathlib import Path

import pytest
import torch

import counterpoint as cp
from counterpoint.ope.model_based import returns

SHAPES = False

stable_baselines3 = pytest.importorskip("stable_baselines3")


def test_a_stable_baselines_agent_trained_in_the_scm_keeps_the_true_pole_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random actions keep it up for about 25 steps; the agent has never met the true CartPole."""
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))
    task = cp.CartPole()
    rows = cp.simulate(task, cp.random_policy(task), 50, 20, 0)
    env = cp.simulation.SCMEnv.of_model(cp.models.location_scale(ensemble=2).fit(rows), task, rows, horizon=200)
    agent = stable_baselines3.DQN(
        "MlpPolicy", env, 1e-3, learning_starts=100, train_freq=1, target_update_interval=250,
        exploration_fraction=0.3, policy_kwargs={"net_arch": [64, 64]}, seed=0, device="cpu",
    )  # fmt: skip
    agent.learn(4000)

    def act(state: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        chosen, _ = agent.predict(state[0].numpy(), deterministic=True)
        return task.actions.features(torch.as_tensor(chosen))[None]

    assert float(returns(act, task, 1, 20, 0).mean()) > 50
