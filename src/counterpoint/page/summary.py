"""What a reader should know after twenty seconds: two verdicts, the policy's value beside who logged, what it is."""

from dataclasses import dataclass

import torch

from counterpoint.core.statistics import Interval
from counterpoint.ope.result import Evaluation
from counterpoint.page.cells import between, counted, share
from counterpoint.page.cohort import CohortSummary, mean_of
from counterpoint.page.doing import Doing
from counterpoint.page.judged import comparison, interval
from counterpoint.page.parts import Parts
from counterpoint.page.words import kind_of

TONES = {"yes": "good", "supported": "good", "with care": "care", "no": "bad", "cannot be judged": "bad"}
Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Badge:
    """A verdict in a word or two, its tone, and why."""

    tone: str
    """good, care, bad or none: the colour only repeats what the words say."""
    words: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """What a reader should know after twenty seconds."""

    evaluation: Badge
    model: Badge
    sentences: tuple[str, ...]
    facts: Facts


def summary(parts: Parts, log: CohortSummary, acts: Doing | None) -> Summary:
    """The top of the page."""
    found = parts.evaluation
    judgement = _unjudged(parts) if found is None else Badge(TONES[found.verdict], found.verdict, found.reasons)
    return Summary(judgement, _trust(parts), _sentences(parts, acts), (*_values(parts, log), *_agreement(parts, acts)))


def _unjudged(parts: Parts) -> Badge:
    """What is said where no log has judged the policy."""
    if parts.returns:
        return Badge("none", "tried in a simulator", ("Its true return is below; no log was asked.",))
    command = "evaluate" if parts.policy else "train"
    return Badge("none", "not judged yet", (f"To do so: counterpoint {command} --run {parts.name}",))


def _trust(parts: Parts) -> Badge:
    """What is known of the model behind the policy, or of the run's model where there is no policy."""
    found = parts.check if parts.policy is None and parts.check is not None else parts.verdict
    return Badge(TONES.get(found.trust, "none"), found.trust, found.reasons)


def _values(parts: Parts, log: CohortSummary) -> Facts:
    returned = true_return(parts.returns)
    tried = f"The policy in the simulator, {len(parts.returns)} trials (95% interval)"
    simulated = () if returned is None else ((tried, value_of(returned)),)
    if parts.evaluation is None:
        return (("Whoever logged, total reward of an episode (95% interval)", value_of(log.returned)), *simulated)
    return (*_judged(parts.evaluation), *simulated)


def _judged(found: Evaluation) -> Facts:
    """The value beside that of who logged; no number where the verdict says that there is none to go by."""
    level = f"{found.confidence:.0%} interval"
    known = found.verdict != "cannot be judged"
    return (
        (f"The policy, an episode ({level})", interval(found.value) if known else found.verdict),
        (f"Whoever logged ({level})", interval(found.logged)),
        (f"Difference ({level})", interval(found.difference) if known else found.verdict),
    )


def _agreement(parts: Parts, acts: Doing | None) -> Facts:
    told = parts.evaluation.diagnostics if parts.evaluation else None
    same = told.agreement if told else acts.agreement if acts else None
    return () if same is None else (("Same action as logged", f"{share(same)} of decisions"),)


def _sentences(parts: Parts, acts: Doing | None) -> tuple[str, ...]:
    who = counted(len(parts.rows.subject.unique()))
    log = f"The log holds {len(parts.rows):,} decisions for {who} subjects."
    if parts.policy is None:
        return (log, "No policy has been learned in this run.")
    often = f" Most often it chooses {acts.commonest}." if acts is not None and acts.commonest else ""
    said = () if parts.evaluation is None else (comparison(parts.evaluation),)
    return (*said, f"The policy is {kind_of(parts.policy)}.{often}", log)


def value_of(found: Interval) -> str:
    """A value with its interval in words."""
    return between(found.estimate, found.low, found.high)


def true_return(returns: tuple[float, ...]) -> Interval | None:
    if not returns:
        return None
    return mean_of(torch.tensor(returns, dtype=torch.double), torch.arange(len(returns)))
