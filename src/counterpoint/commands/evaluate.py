"""`counterpoint evaluate`: true returns in the run's simulator."""

from dataclasses import dataclass
from pathlib import Path

from counterpoint.commands.console import say, show
from counterpoint.errors import CounterpointError
from counterpoint.evaluation.true_return import evaluate
from counterpoint.report.results import write_csv
from counterpoint.runs import Run
from counterpoint.tasks.base import KnownSCM


@dataclass(frozen=True)
class Evaluate:
    """Run the policy in the simulator that made the data. Writes evaluation.csv into the run folder."""

    run: Path
    """Run folder with policy/ and a simulator."""
    trials: int = 10
    """Episodes; the paper uses 10."""
    horizon: int = 0
    """Steps after which an episode is cut; 0 for the task's own."""
    seed: int = 0
    """Seed of the episodes."""

    def execute(self) -> None:
        run = Run(self.run)
        task = run.task
        if not isinstance(task, KnownSCM):
            raise CounterpointError(
                f"'{self.run}' has no simulator, and a policy cannot be tried on logged rows; use simulate"
            )
        returns = evaluate(run.policy, task.at_evaluation(), self.trials, self.seed, self.horizon).tolist()
        rows = [{"trial": i, "return": value} for i, value in enumerate(returns)]
        run.keep("evaluation", lambda path: write_csv(rows, path), ["policy", "task"])
        mean = sum(returns) / len(returns)
        show([{"trials": len(returns), "mean": mean, "lowest": min(returns), "highest": max(returns)}], "return")
        say(str(run.verdict))
        say(f"each trial in {run.path('evaluation')}")
