"""`counterpoint train`: a policy from real and imagined rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from counterpoint.commands.check_scm import examine
from counterpoint.commands.console import Saving, say, watching
from counterpoint.data.jobs import Job
from counterpoint.errors import CounterpointError, require
from counterpoint.methods.arms import named_arms
from counterpoint.methods.general import LEARNER, General
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Policy, Verdict
from counterpoint.policies.d3qn import D3QN
from counterpoint.runs import Run

Method = Literal["ctrl-g", "ctrl-g-bicogan", "base-d", "base-s", "base-m", "d3qn", "bcq", "pets", "steve", "mve"]
NO_MODEL = "It was learned without the run's model, so no check of a model speaks for it."
OWN = "ctrl-g"
"""The method that learns with the run's own SCM and imagined rows; every other fits what it needs itself."""


@dataclass(frozen=True)
class Train:
    """Learn a policy from the run's training subjects. Writes policy/ into the run folder."""

    run: Path
    """Run folder."""
    method: Method = "ctrl-g"
    """ctrl-g uses the run's SCM and imagined rows (fit, augment); the others are the paper's baselines."""
    learner: tyro.conf.OmitArgPrefixes[D3QN] = LEARNER
    seed: int = 0
    """Seed of everything random."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    saving: tyro.conf.OmitArgPrefixes[Saving] = Saving()

    def execute(self) -> None:
        require(
            self.method != "pets" or self.learner == LEARNER,
            "pets plans and learns no Q-network; leave the flags of the Q-network away",
        )
        run, parents = Run(self.run), ["data", "split", "task"]
        parents += ["scm", "augmented"] if self.method == OWN else []
        for part in parents:
            run.fingerprint(part)
        verdict = self._verdict(run)
        with watching(self.run, self.saving) as monitor:
            policy = self._learn(run, monitor)
        run.keep("policy", policy.judged(verdict).save, parents)
        say(f"{self.method} learned on {len(run.training)} logged rows, policy in {run.path('policy')}")
        say(str(verdict))

    def _verdict(self, run: Run) -> Verdict:
        """What is known of the model behind the policy; a model that nobody has checked is checked now."""
        if self.method != OWN:
            return Verdict("not checked", (NO_MODEL,))
        try:
            if not run.has("check"):
                examine(run)
        except CounterpointError as error:
            return Verdict("not checked", (f"The model could not be checked: {error}.",))
        return run.checked

    def _learn(self, run: Run, monitor: Monitor) -> Policy:
        if self.method != OWN:
            arm = named_arms(self.learner)[self.method]
            return arm.fit(run.training, run.task, self.seed, monitor.stage("train"), self.device)
        model, rows = run.scm, run.augmented
        method, job = General(model.recipe, learner=self.learner), Job(rows, self.seed, model.subjects(rows))
        return method.learn([job], [model], run.task, monitor.stage("train"), self.device)[0].selected
