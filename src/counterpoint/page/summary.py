"""Parts of a run that the page shows, and its summary: two verdicts, mean returns, and the kind of policy."""

from dataclasses import dataclass

import torch

from counterpoint.checks.findings import CheckReport
from counterpoint.core.statistics import Interval
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.ope.result import Evaluation
from counterpoint.page.cells import between, counted, share
from counterpoint.page.cohort import CohortSummary, mean_of
from counterpoint.page.evaluation_tables import comparison_text, interval_text, logged_of
from counterpoint.page.policy import PolicyActions, kind_of
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


TONES = {"yes": "good", "supported": "good", "with care": "care", "no": "bad", "cannot be judged": "bad"}
Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Badge:
    """A verdict, the tone of its colour, and its reasons."""

    tone: str
    """good, care, bad or none."""
    words: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """The summary's badges, sentences and numbers."""

    evaluation: Badge
    model: Badge
    sentences: tuple[str, ...]
    facts: Facts


def summary(contents: RunContents, cohort: CohortSummary, actions: PolicyActions | None) -> Summary:
    """Summarise a run."""
    facts = (*_values(contents, cohort), *_agreement(contents, actions))
    return Summary(_evaluation_badge(contents), _model_badge(contents), _sentences(contents, actions), facts)


def _evaluation_badge(contents: RunContents) -> Badge:
    evaluation = contents.evaluation
    if evaluation is not None:
        return Badge(TONES[evaluation.verdict], evaluation.verdict, evaluation.reasons)
    if contents.returns:
        reason = "Its true return is below; it was not evaluated from the log."
        return Badge("none", "tried in a simulator", (reason,))
    command = "evaluate" if contents.policy else "train"
    return Badge("none", "not evaluated yet", (f"To do so: counterpoint {command} --run {contents.name}",))


def _model_badge(contents: RunContents) -> Badge:
    """Verdict on the model behind the policy, or on the run's model if there is no policy."""
    use_check = contents.policy is None and contents.check is not None
    verdict = contents.check if use_check and contents.check is not None else contents.verdict
    return Badge(TONES.get(verdict.trust, "none"), verdict.trust, verdict.reasons)


def _values(contents: RunContents, cohort: CohortSummary) -> Facts:
    facts = []
    if contents.evaluation is None:
        facts.append(
            (f"Logged total reward of an episode (95% interval), of {cohort.returned_of}", value_text(cohort.returned))
        )
    else:
        facts += _evaluation_facts(contents.evaluation)
    returned = true_return(contents.returns)
    if returned is not None:
        caption = f"The policy in the simulator, {len(contents.returns)} trials (95% interval)"
        facts.append((caption, value_text(returned)))
    return tuple(facts)


def _evaluation_facts(evaluation: Evaluation) -> Facts:
    """Mean returns; without numbers for the policy if the verdict says that there is no reliable estimate."""
    level = f"{evaluation.confidence:.0%} interval"
    reliable = evaluation.verdict != "cannot be judged"
    return (
        (f"The policy, an episode ({level})", interval_text(evaluation.value) if reliable else evaluation.verdict),
        (f"Clinicians ({level}), logged return of {logged_of(evaluation)}", interval_text(evaluation.logged)),
        (f"Difference ({level})", interval_text(evaluation.difference) if reliable else evaluation.verdict),
    )


def _agreement(contents: RunContents, actions: PolicyActions | None) -> Facts:
    diagnostics = contents.evaluation.diagnostics if contents.evaluation else None
    agreement = diagnostics.agreement if diagnostics else actions.agreement if actions else None
    return () if agreement is None else (("Same action as logged", f"{share(agreement)} of decisions"),)


def _sentences(contents: RunContents, actions: PolicyActions | None) -> tuple[str, ...]:
    subjects = counted(len(contents.rows.subject.unique()))
    log = f"The log holds {len(contents.rows):,} decisions for {subjects} subjects."
    if contents.policy is None:
        return (log, "No policy has been learned in this run.")
    frequent = f" Most often it chooses {actions.commonest}." if actions is not None and actions.commonest else ""
    compared = () if contents.evaluation is None else (comparison_text(contents.evaluation),)
    return (*compared, f"The policy is {kind_of(contents.policy)}.{frequent}", log)


def value_text(interval: Interval) -> str:
    """A value with its interval."""
    return between(interval.estimate, interval.low, interval.high)


def true_return(returns: tuple[float, ...]) -> Interval | None:
    """Mean of the trials' returns with its interval; None without trials."""
    if not returns:
        return None
    return mean_of(torch.tensor(returns, dtype=torch.double), torch.arange(len(returns)))
