"""Counterpoint: structural causal models, counterfactual rows and policies from logged decisions."""

from counterpoint.checks.assumptions import check_scm
from counterpoint.core.errors import CounterpointError, CounterpointWarning
from counterpoint.core.version import VERSION
from counterpoint.data.doses import ActionColumn, Bins
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.lags import with_lags
from counterpoint.data.schema import Column, Fill, Schema
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.storage import read, write
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.tables.inspection import check
from counterpoint.data.tables.reader import Reader
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.learners.baselines.bcq import BCQ
from counterpoint.learners.baselines.pets import PETS, Planner
from counterpoint.learners.baselines.steve import MVE, STEVE
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.ctrl_p import CTRLp
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.evolution import CrossEntropy, EvolutionStrategy
from counterpoint.learners.methods import paper_arms
from counterpoint.learners.rollout_rows import RolloutRows
from counterpoint.learners.search import Search
from counterpoint.models.dynamics.deterministic import Deterministic
from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.models.dynamics.gaussian_process import GaussianProcess
from counterpoint.models.dynamics.mixture import MixtureDynamics
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.models.groups import KMeansGroups, MixtureGroups
from counterpoint.models.scm.auto import AutoSCM, Candidate, Choice
from counterpoint.models.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.models.scm.bicogan_networks import Adversarial
from counterpoint.models.scm.density import DefaultLikelihood, DensitySCM, location_scale
from counterpoint.models.scm.effects.changes import EquationForm
from counterpoint.models.scm.lstm_factor import LSTMFactor
from counterpoint.models.scm.mixed import MixedSCM
from counterpoint.models.scm.posterior import PosteriorDraws
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.laws import Gaussian, Mixture, SkewedSpline, Spline
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.ope.behaviour import BoostedTrees, Logistic, NearestNeighbours
from counterpoint.ope.evaluation import OPESettings, evaluate
from counterpoint.ope.fqe import FQE
from counterpoint.ope.problem import EpsilonMixture
from counterpoint.ope.result import Evaluation
from counterpoint.ope.true_return import true_return
from counterpoint.policies.base import Policy, PolicyLearner, Verdict
from counterpoint.policies.recommendation import recommend
from counterpoint.policies.rule import OrderedDose, ScoredActions
from counterpoint.registry import load
from counterpoint.run import Run
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.gym import SCMEnv
from counterpoint.simulation.models import FreshNoise, ModelSimulator, NoisePool, SubjectNoise
from counterpoint.simulation.objectives import LowerBound, MeanReturn, WorstShare
from counterpoint.simulation.rollout import Rollout, TaskSimulator
from counterpoint.simulation.selection import RolloutSelection
from counterpoint.simulation.trials import random_policy, simulate, trial_subset
from counterpoint.simulation.truth import TrueModel
from counterpoint.tasks.base import KnownSCM, Task
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.hiv import HIV, HIVResponse
from counterpoint.tasks.sepsis import SepsisResponse, SyntheticSepsis
from counterpoint.tasks.tumour import Tumour, TumourResponse
from counterpoint.tasks.ward import Ward

__version__ = VERSION

__all__ = [
    "BCQ",
    "D3QN",
    "FQE",
    "HIV",
    "MVE",
    "PETS",
    "STEVE",
    "ActionColumn",
    "Adversarial",
    "Augmenter",
    "AutoSCM",
    "BiCoGAN",
    "Bins",
    "BoostedTrees",
    "Box",
    "CTRLg",
    "CTRLp",
    "Candidate",
    "CartPole",
    "Choice",
    "Column",
    "ConditionalBiCoGAN",
    "CounterpointError",
    "CounterpointWarning",
    "CrossEntropy",
    "DefaultLikelihood",
    "DensitySCM",
    "Deterministic",
    "Discrete",
    "EpsilonMixture",
    "EquationForm",
    "Evaluation",
    "EvolutionStrategy",
    "Fill",
    "FreshNoise",
    "Gaussian",
    "GaussianDynamics",
    "GaussianProcess",
    "HIVResponse",
    "Job",
    "KMeansGroups",
    "Knowledge",
    "KnownSCM",
    "LSTMFactor",
    "Likelihood",
    "Logistic",
    "LowerBound",
    "MeanReturn",
    "MixedSCM",
    "Mixture",
    "MixtureDynamics",
    "MixtureGroups",
    "ModelSimulator",
    "Monitor",
    "NearestNeighbours",
    "NoisePool",
    "OPESettings",
    "OrderedDose",
    "Origin",
    "Outcome",
    "Planner",
    "Policy",
    "PolicyLearner",
    "PosteriorDraws",
    "RandomEffects",
    "Reader",
    "Rollout",
    "RolloutRows",
    "RolloutSelection",
    "Run",
    "SCMEnv",
    "Schedule",
    "Schema",
    "ScoredActions",
    "Search",
    "SepsisResponse",
    "SkewedSpline",
    "Spline",
    "SubjectNoise",
    "SyntheticSepsis",
    "Task",
    "TaskSimulator",
    "Transitions",
    "TrueModel",
    "Tumour",
    "TumourResponse",
    "Verdict",
    "Ward",
    "WorstShare",
    "check",
    "check_scm",
    "concatenate",
    "evaluate",
    "from_dataframe",
    "load",
    "location_scale",
    "paper_arms",
    "random_policy",
    "read",
    "recommend",
    "simulate",
    "trial_subset",
    "true_return",
    "with_lags",
    "write",
]  # fmt: skip
"""Also the classes that a saved artifact may name: what is exported here loads back."""
