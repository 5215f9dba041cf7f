"""`counterpoint evaluate`: the mean return of the run's policy, in its simulator or from the log."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from torch import Tensor

from counterpoint.cli.console import progress, say, show
from counterpoint.cli.ope_flags import OPEFlags
from counterpoint.core.artifacts import write_text
from counterpoint.core.errors import require
from counterpoint.core.results import write_csv
from counterpoint.core.wording import amount, counted, discounted
from counterpoint.data.returns import logged_returns
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.nets.training import Monitor
from counterpoint.ope.evaluation import evaluate
from counterpoint.ope.result import Estimate, Evaluation
from counterpoint.ope.true_return import true_return
from counterpoint.page.evaluation_figure import evaluation_figure
from counterpoint.policies.base import Verdict
from counterpoint.run import Run
from counterpoint.tasks.base import KnownSCM, Task


@dataclass(frozen=True)
class Evaluate:
    """Run the policy in the simulator that made the data; where there is none, or with --log, evaluate it from the log:
    every estimate with its interval, what it rests on, and a verdict. Writes evaluation.csv, or evaluation.json with
    estimates.csv and evaluation.png, into the run folder."""

    run: Path
    """Run folder with policy/."""
    log: bool = False
    """Judge the policy from the logged rows, though the run has a simulator."""
    trials: int = 10
    """Episodes in the simulator; the paper uses 10."""
    horizon: int = 0
    """Steps after which an episode in the simulator is cut; 0 for the task's own."""
    judging: tyro.conf.OmitArgPrefixes[OPEFlags] = OPEFlags()
    seed: int = 0
    """Seed of everything random."""

    def execute(self) -> None:
        require(self.trials > 0, f"{self.trials} trials say nothing; ask for 1 or more")
        require(self.horizon >= 0, f"an episode of {self.horizon} steps cannot be; give 0 or more")
        run = Run(self.run)
        task = run.task
        if isinstance(task, KnownSCM) and not self.log:
            self._try(run, task)
        else:
            self._judge(run)

    def _try(self, run: Run, task: KnownSCM) -> None:
        """True returns, beside those of the log."""
        policy, world, steps = run.policy, task.at_evaluation(), self.horizon or task.horizon
        returns = true_return(policy, world, self.trials, self.seed, steps)
        rows = [{"trial": i, "return": value} for i, value in enumerate(returns.tolist())]
        run.keep("returns", lambda path: write_csv(rows, path), ["policy", "task"])
        longest = int(run.data.step.max()) + 1
        shown = [_tried("the policy", returns, steps)]
        if longest < steps:
            shown += [_tried("the policy", true_return(policy, world, self.trials, self.seed, longest), longest)]
        shown += [_tried("the log", logged_returns(run.data, steps), min(longest, steps))]
        show(shown, f"return in the simulator and in the log, {discounted(1.0)}")
        say(run.policy_verdict.brief)
        say(f"each trial in {run.path('evaluation')}")

    def _judge(self, run: Run) -> None:
        """What the log says."""
        policy, (rows, others), (model, task) = run.policy, judged_rows(run), run_model(run)
        how, used = self.judging.judging(), ["scm", "task"] if model is not None else []
        used += ["check"] if model is not None and run.has("check") else []
        with progress() as report:
            found = evaluate(
                rows,
                policy,
                how,
                others=others,
                held_out=len(others) > 0,
                model=model,
                task=task,
                check=run.check_verdict if "check" in used else Verdict(),
                seed=self.seed,
                monitor=Monitor(report=report),
            )
        write_csv(found.rows(), self.run / "estimates.csv")
        evaluation_figure(found, self.run / "evaluation.png")
        run.keep("evaluation", lambda path: write_text(path, found.text()), ["data", "split", *used, "policy"])
        # The name of the folder stands on the terminal alone: the same run elsewhere has the same file.
        tell(replace(found, policy=f"{found.policy} of {run.folder.resolve().name}"))
        say(
            f"numbers in {run.path('evaluation')} and {self.run / 'estimates.csv'}, figure in evaluation.png beside them"
        )


def judged_rows(run: Run) -> tuple[Transitions, Transitions]:
    """The rows that a policy is judged on, and the others: subjects kept aside where there are some, else all."""
    aside = run.held_out
    return (aside, run.training) if len(aside) else (run.data, aside)


def run_model(run: Run) -> tuple[Model | None, Task | None]:
    """The run's SCM and task, where both are there and belong."""
    return (run.scm, run.task) if run.has("scm") and run.has_task() else (None, None)


def tell(found: Evaluation) -> None:
    """An evaluation on the terminal."""
    told, share = found.diagnostics, f"{found.confidence:.0%} interval"
    shown = [{**_row(each, share), "": found.label(each)} for each in found.estimates]
    shown += [{**_row(found.logged, share), "": "what happened"}]
    shown += [{**_row(found.difference, share), "": "paired by subject"}] if found.difference else []
    show(shown, f"return of {found.policy}, {found.population}")
    for name, parts in (("group", found.groups), ("severity", found.severity)):
        if parts:
            show([{name: part.name, "subjects": part.subjects, "policy": str(part.policy), "logged": str(part.logged)}
                  for part in parts], f"by {found.severity_by if name == 'severity' else name}")  # fmt: skip
    learned = "had not learned from" if found.held_out else "may have learned from"
    if told:
        say(f"judged on {counted(told.rows, 'row')} of {counted(told.subjects, 'subject')} that it {learned}; their"
            f" decisions weigh as much as those of {amount(told.effective)} subjects, their whole records as"
            f" {amount(told.effective_records)}")  # fmt: skip
        say(f"{told.agreement:.0%} of logged actions are the policy's too; {told.unsupported:.0%} of its actions were"
            f" never given to others in similar states, and at {told.off_support:.0%} of the steps it would already"
            " have taken one")  # fmt: skip
    if found.mixture:
        say(f"evaluated: {found.mixture}" if found.mixture.share else "evaluated without a mixture, as set")
    elif told:
        say("evaluated without a mixture: the policy draws its actions at random")
    _tell_sensitivity(found)
    for note in found.notes:
        say(f"note: {note}")
    say(found.words())


def _tell_sensitivity(found: Evaluation) -> None:
    if found.behaviour:
        say(f"behaviour policy, by {found.behaviour.recipe}: Brier score {found.behaviour.brier:.3f}, calibration error"
            f" {found.behaviour.error:.1%}")  # fmt: skip
    if found.sensitivity:
        for each in found.sensitivity.behaviour:
            say(f"by {each.name} instead: {each}")
        strongest = found.sensitivity.confounding[-1]
        say(f"unmeasured confounding of strength {strongest.strength:g} a {found.sensitivity.per}: between"
            f" {strongest.low:.3g} and {strongest.high:.3g} by WIS")  # fmt: skip
        if found.sensitivity.breakdown_strength is not None:
            strength = found.sensitivity.breakdown_strength
            say(f"by WIS the difference from the behaviour policy is lost at strength {strength:.2f}")


def _tried(who: str, returns: Tensor, steps: int) -> dict[str, Any]:
    """Returns of episodes, all cut at so many steps: those of the same number can be compared."""
    mean, lowest, highest = (float(value) for value in (returns.mean(), returns.min(), returns.max()))
    told = {"who": who, "episodes": len(returns), "steps at most": steps}
    return {**told, "mean": mean, "lowest": lowest, "highest": highest}


def _row(each: Estimate, share: str) -> dict[str, Any]:
    value, low, high = ("?" if x is None else f"{x:.3g}" for x in (each.value, each.low, each.high))
    return {"estimate": each.name, "return": value, share: f"{low} to {high}"}
