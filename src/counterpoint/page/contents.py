"""Input of the page: the parts of a run."""

from dataclasses import dataclass

from counterpoint.checks.findings import CheckReport
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.ope.result import Evaluation
from counterpoint.policies.base import Policy, Verdict
from counterpoint.tasks.base import Task


@dataclass(frozen=True)
class RunContents:
    """Parts of a run; None for those that were not made."""

    name: str
    rows: Transitions
    held_out: int
    """Number of held-out subjects."""
    fingerprints: dict[str, str]
    """Of every part of the run."""
    task: Task | None = None
    scm: StructuralCausalModel | None = None
    check: CheckReport | None = None
    policy: Policy | None = None
    verdict: Verdict = Verdict()
    """Trust in the model behind the policy."""
    evaluation: Evaluation | None = None
    returns: tuple[float, ...] = ()
    """True returns of trials in a simulator."""
    severity: str = ""
    """State column that measures severity; empty for an automatic choice."""
