"""`counterpoint train`: a policy from real and imagined rows."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro

from counterpoint.cli.check_scm import examine
from counterpoint.cli.console import Saving, say, watching
from counterpoint.cli.search_flags import SearchFlags
from counterpoint.cli.trained import trained_lines
from counterpoint.core.artifacts import device_of
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import Count
from counterpoint.data.jobs import Job
from counterpoint.learners.base import PolicyLearner
from counterpoint.learners.ctrl_g import LEARNER, CTRLg
from counterpoint.learners.ctrl_p import CTRLp, check_personal
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.methods import named_methods
from counterpoint.learners.search import Search
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import (
    Policy,
    Verdict,
)
from counterpoint.run import Run

Method = Literal[
    "ctrl-g", "search", "ctrl-p", "ctrl-p-d3qn", "ctrl-g-rollouts", "ctrl-g-bicogan", "base-d", "base-s", "base-m",
    "d3qn", "bcq", "pets", "pilco", "steve", "mve",
]  # fmt: skip
NO_MODEL = "It was learned without the run's model, so no check of a model speaks for it."
PERSONAL = ("ctrl-p", "ctrl-p-d3qn")
PARENTS = {
    **{name: ["scm", "augmented"] for name in ("ctrl-g", "ctrl-g-rollouts")},
    **{name: ["scm"] for name in ("search", *PERSONAL)},
}
"""What the methods that learn with the run's own SCM are made from; every other fits what it needs itself."""
SEARCHED = ("search", "pilco", "ctrl-p")
WITHOUT_Q = ("pets", *SEARCHED)


@dataclass(frozen=True)
class Train:
    """Learn a policy from the run's training subjects. Writes policy/ into the run folder."""

    run: Path
    """Run folder."""
    method: Method = "ctrl-g"
    """ctrl-g uses the run's SCM and imagined rows (fit, augment), ctrl-g-rollouts its own episodes in the SCM too;
    search needs no imagined rows: it optimises a readable rule inside the SCM. ctrl-p searches such a rule for every
    group of subjects (fit with scm:random-effects), ctrl-p-d3qn learns a Q-network for each. The others are
    baselines."""
    groups: Count = 0
    """Groups of subjects, for ctrl-p and ctrl-p-d3qn; 0 for the number that the records speak for."""
    search: tyro.conf.OmitArgPrefixes[SearchFlags] = SearchFlags()
    learner: tyro.conf.OmitArgPrefixes[D3QN] = LEARNER
    """The Q-network of all other methods but pets."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    saving: tyro.conf.OmitArgPrefixes[Saving] = Saving()

    def execute(self) -> None:
        require(
            self.method not in WITHOUT_Q or self.learner == LEARNER,
            f"{self.method} learns no Q-network; leave the flags of the Q-network away",
        )
        require(
            self.method in SEARCHED or self.search == SearchFlags(),
            f"{self.method} searches no rule; leave --support-price, --objective, --rounds, --restarts and --horizon"
            " away",
        )
        require(not self.groups or self.method in PERSONAL, f"{self.method} knows no groups; leave --groups away")
        require(
            self.groups >= 0, f"--groups {self.groups} is no number of groups; give 1 or more, or 0 to have it chosen"
        )
        run, parents = Run(self.run), ["data", "split", "task", *PARENTS.get(self.method, [])]
        for part in parents:
            run.fingerprint(part)
        if self.method in PERSONAL:
            check_personal(run.scm)
        known = run.has("check")
        verdict = self._verdict(run)
        with watching(self.run, self.saving) as monitor:
            policy = self._learn(run, monitor)
        run.keep("policy", policy.with_verdict(verdict).save, parents)
        say(f"{self.method} learned on {len(run.training)} logged rows, policy in {run.path('policy')}")
        model = run.scm if "scm" in parents else None
        for line in trained_lines(policy, run.training, model, self.seed):
            say(line)
        say(verdict.brief if known else str(verdict))

    def _verdict(self, run: Run) -> Verdict:
        """What is known of the model behind the policy; a model that nobody has checked is checked now."""
        if self.method not in PARENTS:
            return Verdict("not checked", (NO_MODEL,))
        try:
            if not run.has("check"):
                examine(run)
        except CounterpointError as error:
            return Verdict("not checked", (f"The model could not be checked: {error}.",))
        return run.check_verdict

    def _learn(self, run: Run, monitor: Monitor) -> Policy:
        arm, stage = named_methods(self.learner)[self.method], monitor.stage("train")
        if self.method in SEARCHED:
            arm = self._searching(arm, run)
        if self.method not in PARENTS:
            return arm.fit(run.training, run.task, self.seed, stage, self.device)
        model, rows = run.scm, run.augmented if isinstance(arm, CTRLg) else run.training
        if isinstance(arm, CTRLp):
            arm, job = arm.within(model, rows, self.groups or None), Job(rows, self.seed)
        else:
            job = Job(rows, self.seed, model.subjects(rows))
        there = model.to(device_of(self.device))
        if isinstance(arm, CTRLg):
            return replace(arm, model=model.recipe).learn([job], [there], run.task, stage)[0].selected
        assert isinstance(arm, Search | CTRLp)
        arm.check([job], run.task)
        arm = replace(arm, model=model.recipe) if isinstance(arm, Search) else arm
        return arm.with_models([job], [there], run.task, stage)[0].selected

    def _searching(self, arm: PolicyLearner, run: Run) -> PolicyLearner:
        """The method with the settings of its search."""
        if isinstance(arm, CTRLp) and isinstance(arm.policy, Search):
            return replace(arm, policy=self.search.applied(arm.policy, run.training, run.task))
        return self.search.applied(arm, run.training, run.task) if isinstance(arm, Search) else arm
