"""Counterpoint: structural causal models, counterfactual rows and policies from logged decisions."""

from counterpoint.counterfactual import Augmenter
from counterpoint.data.dataframe import from_dataframe
from counterpoint.data.doses import ActionColumn, Bins
from counterpoint.data.inspection import inspect
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.lags import with_lags
from counterpoint.data.reader import Reader
from counterpoint.data.schema import Column, Fill, Schema
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.storage import read, write
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.dynamics.deterministic import Deterministic
from counterpoint.dynamics.gaussian import GaussianDynamics
from counterpoint.dynamics.gaussian_process import GaussianProcess
from counterpoint.dynamics.mixture import MixtureDynamics
from counterpoint.dynamics.outcome import Outcome
from counterpoint.errors import CounterpointError, CounterpointWarning
from counterpoint.evaluation.off_policy.behaviour import BoostedTrees, Logistic, NearestNeighbours
from counterpoint.evaluation.off_policy.case import Judging
from counterpoint.evaluation.off_policy.fqe import FQE
from counterpoint.evaluation.off_policy.judge import judge
from counterpoint.evaluation.off_policy.result import Evaluation
from counterpoint.evaluation.off_policy.target import Softened
from counterpoint.evaluation.true_return import evaluate
from counterpoint.library import load
from counterpoint.methods.arms import paper_arms
from counterpoint.methods.general import General
from counterpoint.methods.personal import Personal
from counterpoint.methods.recommendation import recommend
from counterpoint.nets.laws import Gaussian, Mixture, SkewedSpline, Spline
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.base import Policy, PolicyLearner, Verdict
from counterpoint.policies.bcq import BCQ
from counterpoint.policies.d3qn import D3QN
from counterpoint.policies.evolution import CrossEntropy, EvolutionStrategy
from counterpoint.policies.pets import PETS, Planner
from counterpoint.policies.rollout_rows import RolloutRows
from counterpoint.policies.rules import OrderedDose, ScoredActions
from counterpoint.policies.search import Search
from counterpoint.policies.steve import MVE, STEVE
from counterpoint.runs import Run
from counterpoint.scm.auto import Auto, Candidate, Choice
from counterpoint.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.scm.bicogan_networks import Adversarial
from counterpoint.scm.checks import check
from counterpoint.scm.density import DefaultLikelihood, DensitySCM, location_scale
from counterpoint.scm.effects.changes import Layout
from counterpoint.scm.groups import KMeansGroups, MixtureGroups
from counterpoint.scm.lstm_factor import LSTMFactor
from counterpoint.scm.mixed import Mixed
from counterpoint.scm.posterior import PosteriorDraws
from counterpoint.scm.random_effects import RandomEffects
from counterpoint.simulation.gym import SCMEnv
from counterpoint.simulation.models import Fresh, ModelSimulator, Own, Pool
from counterpoint.simulation.objectives import LowerBound, MeanReturn, WorstShare
from counterpoint.simulation.rollout import Rollout, TaskSimulator
from counterpoint.simulation.selection import Rollouts
from counterpoint.simulation.trials import random_policy, simulate, trial_subset
from counterpoint.simulation.truth import Truth
from counterpoint.tasks.base import KnownSCM, Task
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.hiv import HIV, HIVResponse
from counterpoint.tasks.sepsis import SepsisResponse, SyntheticSepsis
from counterpoint.tasks.tumour import Tumour, TumourResponse
from counterpoint.tasks.ward import Ward
from counterpoint.version import VERSION

__version__ = VERSION

__all__ = [
    "BCQ", "D3QN", "FQE", "HIV", "MVE", "PETS", "STEVE", "ActionColumn", "Adversarial", "Augmenter", "Auto", "BiCoGAN",
    "Bins", "BoostedTrees", "Box", "Candidate", "CartPole", "Choice", "Column", "ConditionalBiCoGAN",
    "CounterpointError", "CounterpointWarning", "CrossEntropy", "DefaultLikelihood", "DensitySCM", "Deterministic",
    "Discrete", "Evaluation", "EvolutionStrategy", "Fill", "Fresh", "Gaussian", "GaussianDynamics", "GaussianProcess",
    "General", "HIVResponse", "Job", "Judging", "KMeansGroups", "Knowledge", "KnownSCM", "LSTMFactor", "Layout",
    "Likelihood", "Logistic", "LowerBound", "MeanReturn", "Mixed", "Mixture", "MixtureDynamics", "MixtureGroups",
    "ModelSimulator", "Monitor", "NearestNeighbours", "OrderedDose", "Origin", "Outcome", "Own", "Personal", "Planner",
    "Policy", "PolicyLearner", "Pool", "PosteriorDraws", "RandomEffects", "Reader", "Rollout", "RolloutRows",
    "Rollouts", "Run", "SCMEnv", "Schedule", "Schema", "ScoredActions", "Search", "SepsisResponse", "SkewedSpline",
    "Softened", "Spline", "SyntheticSepsis", "Task", "TaskSimulator", "Transitions", "Truth", "Tumour",
    "TumourResponse", "Verdict", "Ward", "WorstShare", "check", "concatenate", "evaluate", "from_dataframe", "inspect",
    "judge", "load", "location_scale", "paper_arms", "random_policy", "read", "recommend", "simulate", "trial_subset",
    "with_lags", "write",
]  # fmt: skip
"""Also the classes that a saved artifact may name: what is exported here loads back."""
