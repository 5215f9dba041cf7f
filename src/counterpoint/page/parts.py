"""What a page is made of: the parts of a run, as far as they were made."""

from dataclasses import dataclass

from counterpoint.checks.findings import CheckReport
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.ope.result import Evaluation
from counterpoint.policies.base import Policy, Verdict
from counterpoint.tasks.base import Task


@dataclass(frozen=True)
class Parts:
    """What a run has; none where it was not made."""

    name: str
    rows: Transitions
    held_out: int
    """Subjects that were kept aside."""
    fingerprints: dict[str, str]
    """Of every part that is there."""
    task: Task | None = None
    scm: StructuralCausalModel | None = None
    check: CheckReport | None = None
    policy: Policy | None = None
    verdict: Verdict = Verdict()
    """What is known of the model behind the policy."""
    evaluation: Evaluation | None = None
    returns: tuple[float, ...] = ()
    """True returns of trials in a simulator."""
    severity: str = ""
    """The column that severity is read from; empty to have it chosen."""
