"""Counterpoint: structural causal models, counterfactual rows and policies from logged decisions."""

from counterpoint.counterfactual import Augmenter
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.storage import read, write
from counterpoint.data.tables import from_dataframe
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.dynamics.outcome import Outcome
from counterpoint.errors import CounterpointError
from counterpoint.evaluation.rollout import evaluate
from counterpoint.library import load
from counterpoint.methods.general import General
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.d3qn import D3QN
from counterpoint.scm.auto import Auto
from counterpoint.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.scm.checks import check
from counterpoint.scm.density import DensitySCM, location_scale
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.simulate import random_policy, simulate, trial_subset
from counterpoint.version import VERSION

__version__ = VERSION

__all__ = [
    "D3QN",
    "Augmenter",
    "Auto",
    "BiCoGAN",
    "Box",
    "CartPole",
    "ConditionalBiCoGAN",
    "CounterpointError",
    "DensitySCM",
    "Discrete",
    "General",
    "Job",
    "Monitor",
    "Outcome",
    "Schedule",
    "Transitions",
    "check",
    "concatenate",
    "evaluate",
    "from_dataframe",
    "load",
    "location_scale",
    "random_policy",
    "read",
    "simulate",
    "trial_subset",
    "write",
]
