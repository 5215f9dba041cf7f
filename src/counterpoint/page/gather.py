"""Everything the page of a run shows, as text and numbers: no HTML, no patient's row, no name of a subject."""

from dataclasses import dataclass
from typing import Any

from counterpoint.checks.findings import CheckReport
from counterpoint.core.errors import require
from counterpoint.core.provenance import provenance
from counterpoint.core.statistics import Interval
from counterpoint.data.transitions import Transitions
from counterpoint.ope.result import Evaluation
from counterpoint.page.cells import SMALLEST, PageTable, number
from counterpoint.page.cohort import CohortSummary, cohort
from counterpoint.page.doing import Doing, doing
from counterpoint.page.imagined import Imagined, imagined
from counterpoint.page.judged import Judged, judged
from counterpoint.page.parts import Parts
from counterpoint.page.recipes import settings_table
from counterpoint.page.severity import Severity, severity_of
from counterpoint.page.summary import Summary, summary, true_return
from counterpoint.page.words import Group, groups_of, kind_of, rule_of


@dataclass(frozen=True)
class Page:
    """All of the page."""

    name: str
    summary: Summary
    cohort: CohortSummary
    check: CheckReport | None
    checks: PageTable | None
    severity: Severity | None
    imagined: Imagined | None
    model: str
    """The model's recipe by name; empty where there is none."""
    policy: str
    """What sort of policy there is; empty where there is none."""
    rule: tuple[str, ...]
    doing: Doing | None
    groups: tuple[Group, ...]
    evaluation: Evaluation | None
    judged: Judged | None
    returns: Interval | None
    """Mean true return in the simulator, where there is one."""
    trials: int
    settings: tuple[PageTable, ...]
    versions: tuple[PageTable, ...]
    caveats: tuple[str, ...]


def gather(parts: Parts) -> Page:
    """What may be shown of a run."""
    rows = _enough(parts.rows.real)
    severity, log = severity_of(rows, parts.severity), cohort(rows, parts.held_out)
    acts = None if parts.policy is None else doing(rows, parts.policy, parts.scm, severity)
    return Page(
        name=parts.name,
        summary=summary(parts, log, acts),
        cohort=log,
        check=parts.check,
        checks=None if parts.check is None else _checks(parts.check),
        severity=severity,
        imagined=_imagined(parts, rows, severity, acts),
        model="" if parts.scm is None else type(parts.scm.structure).__name__,
        policy="" if parts.policy is None else kind_of(parts.policy),
        rule=() if parts.policy is None else rule_of(parts.policy, rows),
        doing=acts,
        groups=() if parts.policy is None else groups_of(parts.policy, rows),
        evaluation=parts.evaluation,
        judged=None if parts.evaluation is None else judged(parts.evaluation),
        returns=true_return(parts.returns),
        trials=len(parts.returns),
        settings=_settings(parts),
        versions=_versions(parts),
        caveats=_caveats(parts),
    )


def _enough(rows: Transitions) -> Transitions:
    """The rows, if they are of so many subjects that a page can show them."""
    subjects = len(rows.subject.unique())
    require(
        subjects >= SMALLEST, f"the run has {subjects} subjects, and a page shows at least {SMALLEST} at once; add some"
    )
    return rows


def _imagined(parts: Parts, rows: Transitions, severity: Severity | None, acts: Doing | None) -> Imagined | None:
    """What the model answers in every severity group, of what the policy wants there among the rest."""
    if parts.scm is None or severity is None:
        return None
    return imagined(rows, parts.scm, severity, acts.wanted if acts else (None,) * len(severity.labels))


def _checks(found: CheckReport) -> PageTable:
    lines = tuple(
        (each.name, "passed" if each.passed else "failed", number(each.value), number(each.threshold), each.sentence)
        for each in found.findings
    )
    head = ("Check", "Result", "Found", "Acceptable up to", "In words")
    return PageTable("Checks of the model", head, lines, (0, 1, 4))


def _settings(parts: Parts) -> tuple[PageTable, ...]:
    things: dict[str, Any] = {
        "How the table was read": parts.rows.layout,
        "What is known of the columns": parts.rows.schema.knowledge,
        "Reward and ends": getattr(parts.task, "recipe", parts.task),
        "Structural causal model": None if parts.scm is None else parts.scm.structure,
        "Policy": None if parts.policy is None else parts.policy.recipe,
    }
    return tuple(settings_table(caption, thing) for caption, thing in things.items() if thing is not None)


def _versions(parts: Parts) -> tuple[PageTable, ...]:
    made = tuple((name, "unknown" if value is None else str(value)) for name, value in provenance().items())
    return (
        PageTable("Software and machine that wrote this page", ("What", "Version"), made, (0, 1)),
        PageTable(
            "Parts of the run it was made from", ("Part", "Fingerprint"), tuple(parts.fingerprints.items()), (0, 1)
        ),
    )


def _caveats(parts: Parts) -> tuple[str, ...]:
    said = [
        "This is no medical device. What is recommended here is a hypothesis for people who know the patients.",
        "Everything rests on the log: a reason for treating that was not recorded can make a treatment look better or"
        " worse than it is, and nothing in the log can exclude that.",
        "A counterfactual holds as far as the model’s assumptions do: its checks can refute them, never prove them.",
        "Where an action was rarely or never given in similar states, what would follow it is extrapolated.",
        "The reward is what was optimised. Where it leaves out what matters to a patient, so does the policy.",
        "Subjects treated elsewhere, later or otherwise than those of the log may respond otherwise.",
    ]
    if not parts.held_out:
        said.append("No subjects were kept aside: model and policy were judged on what they learned from.")
    return tuple(said)
