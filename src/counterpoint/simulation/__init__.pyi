"""The names of the subpackage, each imported when it is first used; `core/lazy.py` reads this file."""

from counterpoint.simulation.augmentation import Augmenter as Augmenter
from counterpoint.simulation.gym import SCMEnv as SCMEnv
from counterpoint.simulation.models import FreshNoise as FreshNoise
from counterpoint.simulation.models import ModelSimulator as ModelSimulator
from counterpoint.simulation.models import NoisePool as NoisePool
from counterpoint.simulation.objectives import LowerBound as LowerBound
from counterpoint.simulation.objectives import MeanReturn as MeanReturn
from counterpoint.simulation.objectives import WorstShare as WorstShare
from counterpoint.simulation.rollout import Rollout as Rollout
from counterpoint.simulation.rollout import TaskSimulator as TaskSimulator
from counterpoint.simulation.selection import CheckpointSelection as CheckpointSelection
from counterpoint.simulation.trials import random_policy as random_policy
from counterpoint.simulation.trials import simulate as simulate
from counterpoint.simulation.trials import trial_subset as trial_subset
