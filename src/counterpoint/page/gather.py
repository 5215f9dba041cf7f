"""Texts, tables and numbers of the page of a run, without rows or names of subjects.

Tensors in settings are shown by their size only, because they may hold subjects' numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from counterpoint.checks.findings import CheckReport
from counterpoint.core.artifacts import Artifact
from counterpoint.core.errors import require
from counterpoint.core.provenance import provenance
from counterpoint.core.statistics import Interval
from counterpoint.data.layout import Layout
from counterpoint.data.spaces import Box, Discrete, describe
from counterpoint.data.transitions import Transitions
from counterpoint.ope.result import Evaluation
from counterpoint.page.cells import SMALLEST, PageTable, number
from counterpoint.page.cohort import CohortSummary, cohort
from counterpoint.page.effect_curves import acting_times
from counterpoint.page.evaluation_tables import EvaluationSection, evaluation_section
from counterpoint.page.imagined import ImaginedSection, imagined_section
from counterpoint.page.policy import PolicyActions, PolicyGroup, groups_of, kind_of, policy_actions, rule_of
from counterpoint.page.practice import PracticeSection, practice_section
from counterpoint.page.severity import Severity, severity_of
from counterpoint.page.summary import RunContents, Summary, summary, true_return


@dataclass(frozen=True)
class Page:
    """Contents of the page, for the template."""

    name: str
    summary: Summary
    cohort: CohortSummary
    check: CheckReport | None
    checks: PageTable | None
    check_effects: PageTable | None
    severity: Severity | None
    imagined: ImaginedSection | None
    model: str
    """Class of the model's recipe; empty if there is no model."""
    policy: str
    """Kind of the policy; empty if there is none."""
    rule: tuple[str, ...]
    practice: PracticeSection | None
    """Practice beside the policy; None without a policy."""
    actions: PolicyActions | None
    groups: tuple[PolicyGroup, ...]
    evaluation: Evaluation | None
    evaluated: EvaluationSection | None
    returns: Interval | None
    """Mean true return in the simulator; None if it was not run."""
    trials: int
    settings: tuple[PageTable, ...]
    versions: tuple[PageTable, ...]
    caveats: tuple[str, ...]


def gather(contents: RunContents) -> Page:
    """Compute what the page shows of a run."""
    rows = _with_enough_subjects(contents.rows.real)
    severity = severity_of(rows, contents.severity)
    log = cohort(rows, contents.held_out)
    actions = None if contents.policy is None else policy_actions(rows, contents.policy, contents.scm, severity)
    return Page(
        name=contents.name,
        summary=summary(contents, log, actions),
        cohort=log,
        check=contents.check,
        checks=None if contents.check is None else _checks(contents.check),
        check_effects=None if contents.check is None else _effects(contents.check),
        severity=severity,
        imagined=_imagined(contents, rows, severity, actions),
        model="" if contents.scm is None else type(contents.scm.structure).__name__,
        policy="" if contents.policy is None else kind_of(contents.policy),
        rule=() if contents.policy is None else rule_of(contents.policy, rows),
        practice=None if contents.policy is None else practice_section(rows, contents.policy),
        actions=actions,
        groups=() if contents.policy is None else groups_of(contents.policy, rows),
        evaluation=contents.evaluation,
        evaluated=None if contents.evaluation is None else evaluation_section(contents.evaluation),
        returns=true_return(contents.returns),
        trials=len(contents.returns),
        settings=_settings(contents),
        versions=_versions(contents),
        caveats=_caveats(contents),
    )


def _with_enough_subjects(rows: Transitions) -> Transitions:
    """Return the rows; refuse those of too few subjects."""
    subjects = len(rows.subject.unique())
    require(
        subjects >= SMALLEST, f"the run has {subjects} subjects, and a page shows at least {SMALLEST} at once; add some"
    )
    return rows


def _imagined(
    contents: RunContents, rows: Transitions, severity: Severity | None, actions: PolicyActions | None
) -> ImaginedSection | None:
    if contents.scm is None or severity is None:
        return None
    in_medians = actions.in_medians if actions else (None,) * len(severity.labels)
    return imagined_section(rows, contents.scm, severity, in_medians)


def _checks(report: CheckReport) -> PageTable:
    lines = tuple(
        (
            check.name,
            "passed" if check.passed else "failed",
            number(check.value),
            number(check.threshold),
            check.sentence,
        )
        for check in report.findings
    )
    head = ("Check", "Result", "Value", "Acceptable up to", "Explanation")
    return PageTable("Checks of the model", head, lines, (0, 1, 4))


def _effects(report: CheckReport) -> PageTable | None:
    """Effects of doses in the model beside those in the log; None where they were not compared."""
    lines = [row for comparison in report.effects for row in comparison.table()]
    if not lines:
        return None
    head = ("Dose", "Outcome", "After steps", "In the model", "In the log (95% interval)", "Noise of the outcome")
    note = " ".join(acting_times(report.effects))
    caption = "Effects of doses in the model and in the log"
    return PageTable(caption, head, tuple(tuple(row.values()) for row in lines), (0, 1), note)


def _settings(contents: RunContents) -> tuple[PageTable, ...]:
    recipes: dict[str, Any] = {
        "How the table was read": contents.rows.layout,
        "Prior knowledge of the columns": contents.rows.schema.knowledge,
        "Reward and end of episodes": getattr(contents.task, "recipe", contents.task),
        "Structural causal model": None if contents.scm is None else contents.scm.structure,
        "Policy": None if contents.policy is None else contents.policy.recipe,
    }
    return tuple(settings_table(caption, recipe) for caption, recipe in recipes.items() if recipe is not None)


def _versions(contents: RunContents) -> tuple[PageTable, ...]:
    versions = tuple((name, "unknown" if value is None else str(value)) for name, value in provenance().items())
    return (
        PageTable("Software and machine that wrote this page", ("Software", "Version"), versions, (0, 1)),
        PageTable(
            "Parts of the run that it shows", ("Part", "Fingerprint"), tuple(contents.fingerprints.items()), (0, 1)
        ),
    )


def _caveats(contents: RunContents) -> tuple[str, ...]:
    caveats = [
        "This is no medical device. Its recommendations are hypotheses for clinicians who know the patients.",
        "All results depend on the log: an unrecorded reason for treatment can make the treatment look better or worse"
        " than it is, and the log cannot exclude that.",
        "Counterfactuals are valid only if the model’s assumptions are: checks can refute them, but not prove them.",
        "Where an action was rarely or never given in similar states, its effect is extrapolated.",
        "The policy optimises the reward, and ignores whatever the reward leaves out.",
        "Subjects treated elsewhere, later or differently may respond differently.",
    ]
    if not contents.held_out:
        caveats.append("No subjects were held out: model and policy were evaluated on the data they learned from.")
    return tuple(caveats)


KIND = "kind"
LONGEST = 400
"""Characters of a value that are shown, at most."""


def settings_table(caption: str, recipe: Any) -> PageTable:
    """Table of all settings of a recipe."""
    return PageTable(caption, ("Setting", "Value"), tuple(lines_of(KIND, recipe)), (0, 1))


def lines_of(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the value of every setting inside a recipe."""
    inner = _inside(value)
    if not isinstance(value, Mapping) and not (inner and type(value) in (tuple, list)):
        yield name, _shortened(_text(value))
    for key, part in inner.items():
        yield from lines_of(key if name == KIND else f"{name}.{key}", part)


def _inside(value: Any) -> dict[str, Any]:
    """Settings inside a value; empty if it is shown in one line."""
    if value is None or isinstance(value, str | int | float | Tensor | Artifact | Discrete | Box):
        return {}
    if isinstance(value, Layout):
        return {**_fields(value), "categorical": tuple(name for name, _ in value.categorical)}
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, tuple | list):
        nested = any(_fields(part) for part in value)
        return {str(i + 1): part for i, part in enumerate(value)} if nested else {}
    return _fields(value)


def _fields(value: Any) -> dict[str, Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(vars(value)) if hasattr(value, "__dict__") and not callable(value) else {}


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{' × '.join(map(str, value.shape)) or '1'} numbers"
    if isinstance(value, Artifact):
        return f"a fitted {type(value).__name__}"
    if isinstance(value, Discrete | Box):
        return describe(value)
    if isinstance(value, tuple | list):
        nested = any(isinstance(part, tuple | list) for part in value)
        return ("; " if nested else ", ").join(map(_text, value)) or "none"
    if value is None or value == "":
        return "none"
    if isinstance(value, str | int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return type(value).__name__


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
