"""What `test_sepsis_experiment.py` shares with other test modules."""

from dataclasses import replace

import counterpoint as cp
from counterpoint.nets.laws import Gaussian
from counterpoint.nets.likelihood import Likelihood
from counterpoint.ope.evaluation import OPESettings
from counterpoint.simulation.selection import CheckpointSelection
from reproduction.sepsis_arms import (
    EFFECTS,
    Q_LEARNING,
    SEARCH,
    SepsisArms,
)

BRIEFLY = OPESettings(baselines=False, alternative_behaviours=(), draws=20, critic_draws=4)

BRIEF = Likelihood(cp.Schedule(steps=20, check_every=10))

TINY = SepsisArms(
    scm=cp.DensitySCM(Gaussian(), ensemble=1, hidden=(8,), likelihood=BRIEF),
    effects=replace(EFFECTS, factors=1, ensemble=1, changes=(), schedule=cp.Schedule(steps=4, check_every=2)),
    windows=replace(
        cp.BiCoGAN(factor=cp.models.LSTMFactor(window=3, width=4)),
        generator_hidden=(8, 8),
        encoder_hidden=(8,),
        discriminator_hidden=(8,),
        training=replace(cp.BiCoGAN().training, schedule=cp.Schedule(steps=4), batch=16),
    ),
    outcome=cp.Outcome(hidden=(8,), likelihood=BRIEF),
    learner=replace(Q_LEARNING, hidden=(8,), schedule=cp.Schedule(steps=20, check_every=10), batch=16),
    selection=CheckpointSelection(starts=2),
    search=replace(SEARCH, schedule=cp.Schedule(steps=2, check_every=1), starts=1, choosing_starts=2),
)
