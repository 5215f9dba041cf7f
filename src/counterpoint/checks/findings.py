"""What a check finds, and what all findings together mean to the reader."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.checks.comparisons import EffectComparison
from counterpoint.checks.independence import column_gram
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import NO_THETA, context
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel, spread

SAMPLE = 1000
"""Rows that are looked at: enough for the tests, few enough for their n² kernels."""
LOGGED = 20_000
"""Logged rows among which similar states are looked for."""

OWN_ROWS = "Only the fit's own rows were checked, where a model looks better than it is; fit again with --held-out 0.2."

REMEDIES = {
    "round trip": "fit again with scm:density, which abducts exactly",
    "independent noise": "fit again with scm:auto, or add the common cause to the state (--state)",
    "calibration": "fit again with scm:auto",
    "better than the mean": "fit again with scm:auto, or give more subjects",
    "support": "ask about actions that were taken in similar states; coarser --bins give each more rows",
    "agreement": "fit again with scm:density --scm.ensemble 10, or give more subjects",
}
"""What to do about a failed check, with the flag that does it; other findings say it in their sentence."""

Trust = Literal["yes", "with care", "no"]


@dataclass(frozen=True)
class Finding:
    """One check's result; `value` is acceptable up to `threshold`, or where chance (`p_value`) could explain it."""

    name: str
    value: float
    threshold: float
    passed: bool
    sentence: str
    """The result in plain words."""
    p_value: float | None = None
    grave: bool = True
    """Whether failing means that the model must not be trusted; otherwise its answers need care."""

    @property
    def remedy(self) -> str:
        """What to do where the check failed; "" where the sentence says it or nothing can be done."""
        return f" To do: {REMEDIES[self.name]}." if not self.passed and self.name in REMEDIES else ""


@dataclass(frozen=True)
class CheckSample:
    """The rows a model is examined on, with one alternative action for each, and the noise it finds in them."""

    model: StructuralCausalModel
    rows: Transitions
    theta: Float[Tensor, "n t"]
    alternative: Float[Tensor, "n a"]
    noise: Float[Tensor, "n m u"]
    logged: Transitions
    """All logged rows, or many of them: where support is looked for."""
    held_out: bool
    """Whether the model was fitted on other rows than these."""
    seed: int

    @property
    def context(self) -> Float[Tensor, "n c"]:
        return context(self.rows.state, self.rows.action, theta=self.theta)

    @cached_property
    def context_kernels(self) -> dict[str, Float[Tensor, "n n"]]:
        """What noise must not depend on: the action alone, which many state columns would drown, and everything."""
        return {"the action": column_gram(self.rows.action), "state or action": column_gram(self.context)}

    @property
    def change(self) -> State:
        return self.rows.next_state - self.rows.state

    def member_counterfactuals(self) -> Float[Tensor, "m n s"]:
        """Every member's own answer to the alternative action."""
        return self.predict(self.alternative, self.abducted())

    @torch.no_grad()
    def abducted(self) -> Float[Tensor, "m n u"]:
        """Every member's abducted noise (the posterior's draw in `noise` is the same where it is a point)."""
        flat = self.model.abduct(self.rows, self.theta)
        return flat.view(len(flat), self.model.mechanism.members, -1).transpose(0, 1)

    @torch.no_grad()
    def predict(self, action: Action, noise: Float[Tensor, "m n u"]) -> Float[Tensor, "m n s"]:
        return self.model.member_predictions(self.rows.state, action, noise, self.theta)

    def effect_scale(self, counterfactual: Float[Tensor, "n s"]) -> Float[Tensor, " s"]:
        """Standard deviation of the effect of the action, a column; at least a tenth of the change's."""
        effect = (counterfactual - self.rows.next_state).std(0)
        return torch.maximum(effect, 0.1 * spread(self.change))


@dataclass(frozen=True)
class CheckReport:
    """All findings on one model, failed ones included, and the rows they were made on."""

    findings: tuple[Finding, ...]
    rows: int
    held_out: bool
    state_names: tuple[str, ...]
    effects: tuple[EffectComparison, ...] = ()
    """Effects of doses in the model beside those in the log; none where the log was not given."""

    @property
    def trust(self) -> Trust:
        """No where a grave check failed; with care where another did, or where only the fit's own rows were seen."""
        failed = self.failed
        if any(finding.grave for finding in failed):
            return "no"
        return "with care" if failed or not self.held_out else "yes"

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.passed)

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why not simply yes, the gravest first."""
        ordered = sorted(self.failed, key=lambda finding: not finding.grave)
        failed = tuple(finding.sentence + finding.remedy for finding in ordered)
        return failed if self.held_out else (*failed, OWN_ROWS)

    def verdict(self) -> str:
        """A few sentences for a reader who knows the patients and not the mathematics."""
        kind = "rows the model had not seen" if self.held_out else "of the rows the model was fitted on"
        lines = [f"Trust: {self.trust}{'.' if self.trust == 'yes' else ', because:'}"]
        lines += [f"- {reason}" for reason in self.reasons]
        passed = len(self.findings) - len(self.failed)
        return "\n".join([*lines, f"{passed} of {len(self.findings)} checks passed on {self.rows} {kind}."])

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and words only."""
        return {
            "trust": self.trust,
            "reasons": list(self.reasons),
            "verdict": self.verdict(),
            "rows": self.rows,
            "held_out": self.held_out,
            "state_names": list(self.state_names),
            "findings": [asdict(finding) for finding in self.findings],
            "effects": [asdict(comparison) for comparison in self.effects],
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "CheckReport":
        """The report from the output of `to_json`; anything else is refused in one line."""
        try:
            findings = tuple(Finding(**finding) for finding in saved["findings"])
            effects = tuple(EffectComparison.from_json(comparison) for comparison in saved.get("effects", ()))
            read = cls(findings, saved["rows"], saved["held_out"], tuple(saved["state_names"]), effects)
            whole = all(map(_is_whole, findings)) and read._is_whole and read.trust == saved["trust"]
        except (LookupError, TypeError):
            whole, read = False, cls((), 0, False, ())
        require(whole, "the check does not hold what a check holds; run check-scm again")
        return read

    @property
    def _is_whole(self) -> bool:
        """Whether the fields beside the findings are of their kinds."""
        names = all(isinstance(name, str) for name in self.state_names)
        return type(self.rows) is int and isinstance(self.held_out, bool) and names and len(self.findings) > 0


def _is_whole(finding: Finding) -> bool:
    """Whether every field is of its kind; numbers need not be finite, as those of a broken model are not."""
    numbers = (finding.value, finding.threshold, 0.0 if finding.p_value is None else finding.p_value)
    return (
        all(isinstance(text, str) for text in (finding.name, finding.sentence))
        and all(isinstance(flag, bool) for flag in (finding.passed, finding.grave))
        and all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    )


def draw(model: StructuralCausalModel, rows: Transitions, seed: int, theta: Theta = NO_THETA) -> CheckSample:
    """At most `SAMPLE` real rows with a next state, and an alternative action from the action space for each."""
    usable = (~rows.imagined & rows.has_next).nonzero()[:, 0]
    if len(usable) < 50:
        raise CounterpointError(f"{len(usable)} real rows with a next state are too few for checks; pass 50 or more")
    picked = usable[torch.randperm(len(usable), generator=generator(seed, "rows")).to(usable.device)]
    factors = theta if theta.shape[1] else model.subjects(rows)
    row_factors = factors.expand(len(rows), -1)[picked[:SAMPLE]].to(model.device)
    chosen = rows[picked[:SAMPLE]].to(model.device)
    alternative = rows.actions.sample(len(chosen), generator(seed, "alternative")).to(model.device)
    noise = model.posterior(chosen, generator(seed, "posterior"), row_factors).view(
        len(chosen), model.mechanism.members, -1
    )
    noise = noise[..., : model.mechanism.equation_noise]  # Counterfactuals do not use that of exogenous columns.
    logged = rows[picked[:LOGGED]].to(model.device)
    return CheckSample(model, chosen, row_factors, alternative, noise, logged, not model.has_seen(rows), seed)
