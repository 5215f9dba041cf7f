"""`Run`: a run folder whose models, policies and results are loaded as typed objects."""

from pathlib import Path

from counterpoint.checks.findings import CheckReport
from counterpoint.core.artifacts import decode, read_json
from counterpoint.core.errors import CounterpointError
from counterpoint.core.settings import checked
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.ope.result import Evaluation
from counterpoint.policies.base import Policy, Verdict
from counterpoint.registry import Registry, load
from counterpoint.run_folder import PARTS, RunFolder
from counterpoint.simulation.streaming import StoredPieces
from counterpoint.tasks.base import Task


class Run(RunFolder):
    """A run folder. `classes` are your own classes (a task, a recipe) that its artifacts contain.

    Example:
        >>> run = Run("runs/first")  # doctest: +SKIP
        >>> policy, rows = run.policy, run.held_out  # doctest: +SKIP
    """

    @checked
    def __init__(self, folder: Path | str, *classes: type) -> None:
        self.classes = classes
        super().__init__(folder)

    def has_task(self) -> bool:
        """Whether the present data have a task. A damaged learned task counts as none; a damaged simulator raises."""
        entry = self._record().get("task")
        if entry is None or entry["made_from"] != {name: self.fingerprint(name) for name in entry["made_from"]}:
            return False
        try:
            return isinstance(self.task, Task)
        except CounterpointError:
            if entry.get("simulator"):
                raise
            return False

    @property
    def training_source(self) -> StoredPieces:
        """The rows of the subjects that are not held out, read in pieces."""
        return StoredPieces.of(self._use("data"), self._split()["subjects"])

    @property
    def task(self) -> Task:
        """The simulator, or the learned reward and end of episodes."""
        path = self._use("task")
        if path.is_dir():
            return load(path, Task, self.classes)
        task = decode(read_json(path, "run simulate again"), Registry(self.classes))
        if not isinstance(task, Task):
            raise CounterpointError(f"'{path}' does not hold a task; run {PARTS['task'].command} again")
        return task

    @property
    def scm(self) -> StructuralCausalModel:
        """The fitted structural causal model."""
        return load(self._use("scm"), StructuralCausalModel, self.classes)

    @property
    def policy(self) -> Policy:
        """The learned policy."""
        return load(self._use("policy"), Policy, self.classes)

    @property
    def evaluation(self) -> Evaluation:
        """The off-policy evaluation of the policy."""
        return Evaluation.from_json(self._json("evaluation"))

    @property
    def check_report(self) -> CheckReport:
        """The checks of the SCM."""
        return CheckReport.from_json(self._json("check"))

    @property
    def check_verdict(self) -> Verdict:
        """Trust in the SCM by its checks."""
        report = self.check_report
        return Verdict(report.trust, report.reasons)

    @property
    def policy_verdict(self) -> Verdict:
        """Trust in the model behind the policy: the run's latest check, or else the verdict saved with the policy."""
        from_scm = "scm" in self._record().get("policy", {}).get("made_from", {})
        return self.check_verdict if from_scm and self.has("check") else self.policy.verdict
