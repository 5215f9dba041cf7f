"""What was found of a policy in a log: plain numbers and words, whole in one JSON file, and no patient among them.

Estimates held to the range of returns that an episode can have: none outside it is right.

What is moved is value and ends; how far it lay outside is kept, for a value outside says that the estimator failed.
"""

import json
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from counterpoint.core.artifacts import decode, encode
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import Share, check_settings
from counterpoint.core.statistics import Interval
from counterpoint.core.wording import counted, discounted
from counterpoint.data.returns import ReturnRange, possible_returns
from counterpoint.data.transitions import Transitions
from counterpoint.ope.confounding import Bound
from counterpoint.ope.problem import Episodes, EpsilonMixture
from counterpoint.tasks.base import Task

FORMAT = "counterpoint-evaluation/1"
Judgement = Literal["supported", "with care", "cannot be judged"]
HELD = "held to the possible range"


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its confidence interval; none where the log does not say."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    unheld: tuple[float | None, float | None, float | None] | None = None
    """Value and ends before they were held to the range of possible returns; None where all lay inside."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def of(cls, name: str, found: Interval) -> "Estimate":
        value, low, high = (n if math.isfinite(n) else None for n in (found.estimate, found.low, found.high))
        return cls(name, value, low, high)

    def __str__(self) -> str:
        return f"{_shown(self.value, self.low, self.high)}{f', {HELD}' if self.held else ''}"

    @property
    def held(self) -> bool:
        """Whether value or an end lay outside the possible returns and was moved to the nearest one."""
        return self.unheld is not None

    @property
    def outside(self) -> bool:
        """Whether the value itself did."""
        return self.unheld is not None and self.unheld[0] != self.value

    @property
    def before(self) -> str:
        """Value and ends before they were held."""
        return _shown(*(self.unheld or (self.value, self.low, self.high)))

    @property
    def known(self) -> bool:
        """Whether value and both ends are."""
        return None not in (self.value, self.low, self.high)

    @property
    def width(self) -> float:
        """From end to end; infinite where an end is not known."""
        return math.inf if self.low is None or self.high is None else self.high - self.low

    def excludes(self, value: float) -> bool:
        """Whether a value lies outside the interval."""
        return (self.low is not None and value < self.low) or (self.high is not None and value > self.high)

    def apart(self, other: "Estimate") -> bool:
        """Whether the two intervals have nothing in common."""
        return any(
            a.high is not None and b.low is not None and a.high < b.low for a, b in ((self, other), (other, self))
        )


def _shown(value: float | None, low: float | None, high: float | None) -> str:
    middle, *ends = ("?" if each is None else f"{each:.3g}" for each in (value, low, high))
    return f"{middle} [{', '.join(ends)}]"


@dataclass(frozen=True)
class Part:
    """The policy and whoever logged, among some of the subjects."""

    name: str
    subjects: int
    policy: Estimate
    logged: Estimate

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Diagnostics:
    """How much of the log speaks of the policy."""

    subjects: int
    episodes: int
    rows: int
    effective: float
    """Subjects whose every decision were the policy's that would be as sure (Kish), by the weights of single decisions,
    which the recommended estimate goes by."""
    effective_records: float
    """The same by the weights of whole records, which weighted importance sampling goes by."""
    largest: Share
    """Share of all weight of single decisions that the heaviest subject has."""
    unsupported: Share
    """Share of recommended actions that no other subject was given in a similar state."""
    strayed: Share
    """Share of the steps at which the policy would have taken such an action by then, beyond those at which whoever
    logged had."""
    agreement: Share
    """Share of logged actions that the policy would have taken too."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class BehaviourFound:
    """Whoever logged, as estimated."""

    recipe: str
    brier: float
    """Mean squared distance of the probabilities to what was done, 0 to 2."""
    error: Share
    """Expected calibration error: how far foreseen and seen shares are apart on average."""
    calibration: tuple[tuple[float, float], ...]
    """Pairs of a foreseen probability and how often the action was taken then."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Sensitivity:
    """What changes where an assumption does."""

    behaviour: tuple[Estimate, ...]
    """The recommended estimate by other estimates of whoever logged."""
    per: Literal["record", "step"]
    """What the strengths of confounding bound: the odds of a record's decisions together, or of every decision."""
    confounding: tuple[Bound, ...]
    """Weighted importance sampling under unmeasured confounding of several strengths."""
    lost_at: float | None
    """The strength from which on the policy is no longer surely better, or worse, than whoever logged; none where the
    recommended estimate or the weighted one does not say so to begin with."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Evaluation:
    """What a log says of a policy. `recommended` names the one of the estimates to go by."""

    policy: str
    verdict: Judgement
    reasons: tuple[str, ...]
    """Why not simply supported."""
    recommended: str
    estimates: tuple[Estimate, ...]
    logged: Estimate
    """What whoever logged earned."""
    difference: Estimate | None
    """The recommended estimate less that, paired by subject; none where only a model judged."""
    diagnostics: Diagnostics | None
    """None for continuous doses, which have no probabilities."""
    behaviour: BehaviourFound | None
    groups: tuple[Part, ...]
    """By group of subjects, where the policy knows groups."""
    severity_by: str
    """What `severity` sorts subjects by."""
    severity: tuple[Part, ...]
    sensitivity: Sensitivity | None
    softened: EpsilonMixture | None
    """How a policy that always takes one action was softened; none for one with chances of its own."""
    held_out: bool
    """Whether the policy had learned from other subjects alone."""
    discount: Share
    confidence: Share
    draws: int
    """Resamples of the subjects."""
    seed: int
    notes: tuple[str, ...] = ()
    """Which estimates are missing or were held to the possible range, and why."""
    possible: ReturnRange | None = None
    """The returns that an episode can have, to which all estimates are held."""

    def __post_init__(self) -> None:
        check_settings(self)

    def __getitem__(self, name: str) -> Estimate:
        found = [estimate for estimate in self.estimates if estimate.name == name]
        require(len(found) > 0, f"there is no estimate '{name}'; there are {', '.join(e.name for e in self.estimates)}")
        return found[0]

    @property
    def value(self) -> Estimate:
        """The recommended estimate."""
        return self[self.recommended]

    @property
    def whose(self) -> str:
        """Which returns these are: of whom, and how later rewards count."""
        who = "held-out subjects" if self.held_out else "all logged subjects"
        return f"{who}, {discounted(self.discount)}"

    def label(self, each: Estimate) -> str:
        """What a table says beside an estimate: whether it is recommended, and whether it was held.

        An estimate that is not known, or that the verdict refuses, is recommended to nobody.
        """
        said = [HELD] if each.held else []
        if each.name != self.recommended:
            return ", ".join(said)
        standing = "recommended" if self.verdict != "cannot be judged" else self.verdict
        return ", ".join([standing if each.known else "not known", *said])

    def words(self) -> str:
        """The verdict and why."""
        lines = "".join(f"\n- {reason}" for reason in self.reasons)
        return f"Verdict: {self.verdict}{', because:' if lines else '.'}{lines}"

    @property
    def brief(self) -> str:
        """One line: the verdict, its gravest reason, and how many more there are."""
        if not self.reasons:
            return f"Verdict: {self.verdict}."
        first, *more = self.reasons
        rest = f" ({counted(len(more), 'more reason')})" if more else ""
        return f"Verdict: {self.verdict}. {first}{rest}"

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **encode(self)}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> "Evaluation":
        """What `to_json` gave; anything else is one line, and nothing in it is run."""
        return read_back(said, cls, FORMAT, KNOWN)

    def text(self) -> str:
        """The JSON file."""
        return json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"

    def rows(self) -> list[dict[str, Any]]:
        """All estimates as a table."""
        parts = [("difference from the log", [self.difference] if self.difference else [])]
        named = [("estimate", self.estimates), ("log", (self.logged,)), *parts]
        found = [(kind, each.name, None, each) for kind, some in named for each in some]
        for kind, some in (("group", self.groups), (f"severity by {self.severity_by}", self.severity)):
            found += [(kind, f"{p.name}, {e.name}", p.subjects, e) for p in some for e in (p.policy, p.logged)]
        if self.sensitivity:
            found += [("behaviour model", each.name, None, each) for each in self.sensitivity.behaviour]
            found += [("unmeasured confounding", f"strength {b.strength:g} per {self.sensitivity.per}", None,
                       Estimate("", None, b.low, b.high)) for b in self.sensitivity.confounding]  # fmt: skip
        return [
            {
                "kind": kind,
                "name": name,
                "value": each.value,
                "low": each.low,
                "high": each.high,
                "subjects": subjects,
                "held": each.held,
            }
            for kind, name, subjects, each in found
        ]


KNOWN: dict[str, type] = {
    each.__name__: each
    for each in (
        Evaluation,
        Estimate,
        Part,
        Diagnostics,
        BehaviourFound,
        Sensitivity,
        Bound,
        EpsilonMixture,
        ReturnRange,
    )
}


Kind = TypeVar("Kind")


def read_back(said: dict[str, Any], kind: type[Kind], form: str, known: dict[str, type]) -> Kind:
    """A finding from its JSON, made of known classes alone, each of which checks its fields."""
    require(said.get("format") == form, f"this is not a {form}; run the command that writes it again")
    try:
        found = decode({name: value for name, value in said.items() if name != "format"}, known)
    except (CounterpointError, AttributeError, RecursionError, ValueError) as error:
        raise CounterpointError(f"the {form} is damaged ({error}); run the command that writes it again") from None
    if not isinstance(found, kind):
        raise CounterpointError(f"this is not a {form}; run the command that writes it again")
    return found


def possible_range(rows: Transitions, log: Transitions, discount: float = 1.0, task: Task | None = None) -> ReturnRange:
    """The possible returns of the episodes that are judged, `rows`, by the rewards of the whole log.

    A range of rewards that the task or the table's schema declares stands for the logged rewards.
    """
    declared = getattr(task, "reward_range", None) or rows.schema.knowledge.reward_range
    return possible_returns(log, discount, declared, Episodes.of(rows).places.shape[1])


def hold(found: Estimate, possible: ReturnRange) -> Estimate:
    """The estimate of a return, value and ends moved to the nearest possible return."""
    return _moved(
        found, *(_clipped(each, possible.low, possible.high) for each in (found.value, found.low, found.high))
    )


def hold_difference(found: Estimate, one: Estimate, other: Estimate, possible: ReturnRange) -> Estimate:
    """The difference of two estimates that were held: that of their values, no end further than possible returns are.

    The first is at most `possible.high`, so no end is above that less the lower end of the other.
    """
    value = found.value
    if one.outside or other.outside:
        value = None if one.value is None or other.value is None else one.value - other.value
    least = possible.low - (possible.high if other.high is None else other.high)
    most = possible.high - (possible.low if other.low is None else other.low)
    low, high = _clipped(found.low, least, most), _clipped(found.high, least, most)
    if value is not None:
        low, high = (None if low is None else min(low, value)), (None if high is None else max(high, value))
    return _moved(found, value, low, high)


def hold_part(part: Part, possible: ReturnRange) -> Part:
    """The policy's estimate among some subjects, held."""
    return replace(part, policy=hold(part.policy, possible))


def hold_sensitivity(found: Sensitivity, possible: ReturnRange) -> Sensitivity:
    """The recommended estimate by other behaviour models, held."""
    return replace(found, behaviour=tuple(hold(each, possible) for each in found.behaviour))


def held_notes(estimates: tuple[Estimate, ...], possible: ReturnRange) -> tuple[str, ...]:
    """A line for every estimate that was moved."""
    return tuple(
        f"{each.name} was {each.before}; it is held to the possible range {possible}" for each in estimates if each.held
    )


def _clipped(value: float | None, low: float, high: float) -> float | None:
    return None if value is None else min(max(value, low), high)


def _moved(found: Estimate, value: float | None, low: float | None, high: float | None) -> Estimate:
    before = found.value, found.low, found.high
    if (value, low, high) == before:
        return found
    return replace(found, value=value, low=low, high=high, unheld=before)
