"""A partially linear mixed-effects SCM whose dose effects are estimated orthogonally.

    s' = s + x·(M + B·θ) + R·u,      θ ~ N(0, I) for each subject,      u ~ N(0, I)

x holds the state, the doses and what remembers them (dose on board, lags), doses per a subject's size where that is
declared. M, B and R come from the marginal likelihood of whole subjects (`RandomEffects` without its network); the
coefficients of the doses are then calibrated to double-machine-learning estimates of their effects over several steps
(`effects.calibration`). A fit takes seconds. Small effects that build up over hours are estimated for their own sake:
the likelihood of single steps would spend nothing on them.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from counterpoint.core.artifacts import device_of
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Positive, check_settings
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Recipe
from counterpoint.models.effects.estimates import EffectEstimates
from counterpoint.models.effects.orthogonal import EffectSettings, estimate_effects
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.effects.calibration import calibrate
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Monitor

MIN_SUBJECTS = 4
"""Subjects below which effects are not estimated apart: cross-fitting by subject needs some in every fold."""


@dataclass(frozen=True)
class PartiallyLinearSCM(Recipe[StructuralCausalModel]):
    """A linear SCM with subject factors, its dose effects calibrated to orthogonal estimates over several steps."""

    command: ClassVar = ("partially-linear", "dose effects agree with orthogonal estimates over several steps")

    law: RandomEffects = RandomEffects(hidden=(), ensemble=10, bounded=True)
    """The linear mixed-effects model; its members are bootstraps of the subjects."""
    effects: EffectSettings = EffectSettings()
    """How the effects are estimated."""
    steps: tuple[Positive, ...] = (1, 2, 4, 6)
    """Steps after a dose whose effects are estimated; those longer than the records are left out."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        with warnings.catch_warnings():  # The law does not hold declared signs before it is calibrated.
            warnings.filterwarnings("ignore", "this model's form does not hold declared signs")
            models = self.law.fit_many(jobs, monitor.stage("mixed effects"), "cpu")
        calibrated = []
        for number, (model, job) in enumerate(zip(models, jobs, strict=True)):
            monitor.report("dose effects", number, len(jobs))
            seed = derive(job.seed, "effects")
            rows = job.data[~job.data.imagined & job.data.has_next]
            model = calibrate(model, rows, self.estimates(rows, seed), seed)
            calibrated.append(model.with_recipe(self).to(device_of(device)))
        monitor.report("dose effects", len(jobs), len(jobs))
        return calibrated

    def estimates(self, rows: Transitions, seed: int) -> EffectEstimates | None:
        """Orthogonal estimates of the effects on every column that has an equation; None where the log allows none."""
        subjects = len(rows.subject.unique())
        if subjects < MIN_SUBJECTS:
            return None
        settings = replace(self.effects, folds=min(self.effects.folds, subjects))
        fixed = {*rows.schema.unpredicted, *(column for column, _ in rows.schema.categories)}
        outcomes = [name for i, name in enumerate(rows.state_names) if i not in fixed]
        longest = int(rows.step.max() - rows.step.min()) + 1
        steps = [step for step in self.steps if step <= longest]
        try:
            return estimate_effects(rows, outcomes, steps, seed, settings)
        except CounterpointError:  # Too few subjects with several rows.
            return None
