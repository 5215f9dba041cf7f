"""`counterpoint evaluate`: true returns in the run's simulator."""

from dataclasses import dataclass
from pathlib import Path

from counterpoint.commands.console import POLICY, load_task, say, show
from counterpoint.errors import CounterpointError
from counterpoint.evaluation.rollout import evaluate
from counterpoint.library import load_kind
from counterpoint.policies.base import Policy
from counterpoint.report.tables import write_csv
from counterpoint.tasks.cartpole import CartPole


@dataclass(frozen=True)
class Evaluate:
    """Run the policy in the simulator that made the data. Writes evaluation.csv into the run folder."""

    run: Path
    """Run folder with policy/ and task.json."""
    policy: Path | None = None
    """Folder of a policy; the run's policy/ where none is given."""
    trials: int = 10
    """Episodes; the paper uses 10."""
    horizon: int = 500
    """Steps after which an episode is cut."""
    seed: int = 0
    """Seed of the episodes."""

    def execute(self) -> None:
        task = load_task(self.run)
        if not isinstance(task, CartPole):
            raise CounterpointError(
                f"'{self.run}' has no simulator, and a policy cannot be tried on logged rows; use simulate"
            )
        policy = load_kind(self.policy or self.run / POLICY, Policy, "a policy")
        returns = evaluate(policy, task.at_evaluation(), self.trials, self.seed, self.horizon).tolist()
        write_csv([{"trial": i, "return": value} for i, value in enumerate(returns)], self.run / "evaluation.csv")
        mean = sum(returns) / len(returns)
        show([{"trials": len(returns), "mean": mean, "lowest": min(returns), "highest": max(returns)}], "return")
        say(f"each trial in {self.run / 'evaluation.csv'}")
