"""`counterpoint evaluate`: the mean return of the run's policy, in its simulator or from the log."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from counterpoint.cli.console import progress, say, show
from counterpoint.cli.ope_flags import OPEFlags
from counterpoint.core.errors import require
from counterpoint.core.wording import amount, counted, discounted

if TYPE_CHECKING:
    from torch import Tensor

    from counterpoint.data.transitions import Transitions
    from counterpoint.models.base import Model
    from counterpoint.ope.result import Estimate, Evaluation
    from counterpoint.run import Run
    from counterpoint.tasks.base import KnownSCM, Task


@dataclass(frozen=True)
class Evaluate:
    """Run the policy in the simulator that made the data; where there is none, or with --log, evaluate it from the log:
    every estimate with its interval, its diagnostics, and a verdict. Writes evaluation.csv, or evaluation.json with
    estimates.csv and evaluation.png, into the run folder."""

    run: Path
    """Run folder with policy/."""
    log: bool = False
    """Evaluate the policy from the logged rows, though the run has a simulator."""
    trials: int = 10
    """Episodes in the simulator; the paper uses 10."""
    horizon: int = 0
    """Steps after which an episode in the simulator is cut; 0 for the task's own."""
    ope: tyro.conf.OmitArgPrefixes[OPEFlags] = OPEFlags()
    seed: int = 0
    """Seed of everything random."""

    def execute(self) -> None:
        from counterpoint.run import Run
        from counterpoint.tasks.base import KnownSCM

        require(self.trials > 0, f"{self.trials} trials say nothing; ask for 1 or more")
        require(self.horizon >= 0, f"an episode of {self.horizon} steps cannot be; give 0 or more")
        run = Run(self.run)
        task = run.task
        if isinstance(task, KnownSCM) and not self.log:
            self._simulate(run, task)
        else:
            self._evaluate(run)

    def _simulate(self, run: "Run", task: "KnownSCM") -> None:
        """Print true returns of the policy beside the returns in the log."""
        from counterpoint.core.tables import write_csv
        from counterpoint.data.returns import logged_returns
        from counterpoint.ope.model_based import true_return

        policy, simulator, steps = run.policy, task.at_evaluation(), self.horizon or task.horizon
        returns = true_return(policy, simulator, self.trials, self.seed, steps)
        rows = [{"trial": i, "return": value} for i, value in enumerate(returns.tolist())]
        run.keep("returns", lambda path: write_csv(rows, path), ["policy", "task"])
        longest = int(run.data.step.max()) + 1
        summaries = [_summary("the policy", returns, steps)]
        if longest < steps:
            cut = true_return(policy, simulator, self.trials, self.seed, longest)
            summaries.append(_summary("the policy", cut, longest))
        summaries.append(_summary("the log", logged_returns(run.data, steps), min(longest, steps)))
        show(summaries, f"return in the simulator and in the log, {discounted(1.0)}")
        say(run.policy_verdict.brief)
        say(f"each trial in {run.path('returns')}")

    def _evaluate(self, run: "Run") -> None:
        """Evaluate the policy from the log, keep the result in the run and print it."""
        from counterpoint.core.artifacts import write_text
        from counterpoint.core.tables import write_csv
        from counterpoint.nets.training import Monitor
        from counterpoint.ope.evaluation import evaluate
        from counterpoint.page.evaluation_figure import evaluation_figure
        from counterpoint.policies.base import Verdict

        policy, (rows, others), (model, task) = run.policy, evaluation_rows(run), run_model(run)
        is_checked = model is not None and run.has("check")
        parents = ["data", "split", *(["scm", "task"] if model is not None else []), *(["check"] if is_checked else [])]
        with progress() as report:
            evaluation = evaluate(
                rows,
                policy,
                self.ope.settings(),
                others=others,
                held_out=len(others) > 0,
                model=model,
                task=task,
                check=run.check_verdict if is_checked else Verdict(),
                seed=self.seed,
                monitor=Monitor(report=report),
            )
        write_csv(evaluation.rows(), self.run / "estimates.csv")
        evaluation_figure(evaluation, self.run / "evaluation.png")
        run.keep("evaluation", lambda path: write_text(path, evaluation.text()), [*parents, "policy"])
        # The folder's name is printed only: the same run in another folder has the same file.
        print_evaluation(replace(evaluation, policy=f"{evaluation.policy} of {run.folder.resolve().name}"))
        files = f"{run.path('evaluation')} and {self.run / 'estimates.csv'}"
        say(f"numbers in {files}, figure in evaluation.png beside them")


def evaluation_rows(run: "Run") -> "tuple[Transitions, Transitions]":
    """Return the rows that a policy is evaluated on, and the others: held-out subjects where there are some, or all."""
    held_out = run.held_out
    return (held_out, run.training) if len(held_out) else (run.data, held_out)


def run_model(run: "Run") -> "tuple[Model | None, Task | None]":
    """Return the run's SCM and task, or neither where one is missing or stale."""
    return (run.scm, run.task) if run.has("scm") and run.has_task() else (None, None)


def print_evaluation(evaluation: "Evaluation") -> None:
    """Print estimates, diagnostics, sensitivity analysis and verdict."""
    interval = f"{evaluation.confidence:.0%} interval"
    rows = [{**_row(estimate, interval), "": evaluation.label(estimate)} for estimate in evaluation.estimates]
    rows.append({**_row(evaluation.logged, interval), "": "what happened"})
    rows += [{**_row(estimate, interval), "": "baseline"} for estimate in evaluation.baselines]
    if evaluation.difference:
        rows.append({**_row(evaluation.difference, interval), "": "paired by subject"})
    show(rows, f"return of {evaluation.policy}, {evaluation.population}")
    for column, title, parts in (
        ("group", "by group", evaluation.groups),
        ("severity", f"by {evaluation.severity_by}", evaluation.severity),
    ):
        if parts:
            show(
                [
                    {
                        column: part.name,
                        "subjects": part.subjects,
                        "policy": str(part.policy),
                        "logged": str(part.logged),
                    }
                    for part in parts
                ],
                title,
            )
    _print_diagnostics(evaluation)
    _print_sensitivity(evaluation)
    for note in evaluation.notes:
        say(f"note: {note}")
    say(evaluation.words())


def _print_diagnostics(evaluation: "Evaluation") -> None:
    """Print how many subjects carry the estimates, and what was evaluated in place of a deterministic policy."""
    diagnostics = evaluation.diagnostics
    if diagnostics:
        learned = "had not learned from" if evaluation.held_out else "may have learned from"
        rows, subjects = counted(diagnostics.rows, "row"), counted(diagnostics.subjects, "subject")
        say(
            f"evaluated on {rows} of {subjects} that it {learned}; effective sample size"
            f" {amount(diagnostics.effective)} subjects by single decisions, {amount(diagnostics.effective_records)} by"
            " whole records"
        )
        say(
            f"{diagnostics.agreement:.0%} of logged actions are the policy's too; {diagnostics.unsupported:.0%} of its"
            f" actions were never given to others in similar states, and at {diagnostics.off_support:.0%} of the steps"
            " it would already have taken one"
        )
    if evaluation.mixture:
        mixture = evaluation.mixture
        say(f"evaluated: {mixture}" if mixture.share else "evaluated without a mixture, as set")
    elif diagnostics and evaluation.behaviour:
        say("evaluated without a mixture: the policy draws its actions at random")


def _print_sensitivity(evaluation: "Evaluation") -> None:
    """Print how the estimate depends on the behaviour policy's estimator and on unmeasured confounding."""
    behaviour, sensitivity = evaluation.behaviour, evaluation.sensitivity
    if behaviour:
        say(
            f"behaviour policy, by {behaviour.recipe}: Brier score {behaviour.brier:.3f}, calibration error"
            f" {behaviour.error:.1%}"
        )
    if sensitivity is None:
        return
    for estimate in sensitivity.behaviour:
        say(f"with {estimate.name} instead: {estimate}")
    strongest = sensitivity.confounding[-1]
    say(
        f"unmeasured confounding of strength {strongest.strength:g} a {sensitivity.per}: between"
        f" {strongest.low:.3g} and {strongest.high:.3g} by WIS"
    )
    if sensitivity.breakdown_strength is not None:
        say(f"by WIS the difference from the behaviour policy is lost at strength {sensitivity.breakdown_strength:.2f}")


def _summary(name: str, returns: "Tensor", steps: int) -> dict[str, Any]:
    """Return a row of the table of returns; returns over the same number of steps can be compared."""
    mean, lowest, highest = (float(value) for value in (returns.mean(), returns.min(), returns.max()))
    counts = {"who": name, "episodes": len(returns), "steps at most": steps}
    return {**counts, "mean": mean, "lowest": lowest, "highest": highest}


def _row(estimate: "Estimate", interval: str) -> dict[str, Any]:
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = ("?" if number is None else f"{number:.3g}" for number in numbers)
    return {"estimate": estimate.name, "return": value, interval: f"{low} to {high}"}
