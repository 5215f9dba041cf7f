"""The names of the subpackage, each imported when it is first used; `core/lazy.py` reads this file."""

from counterpoint.learners.base import PolicyLearner as PolicyLearner
from counterpoint.learners.baselines.bcq import BCQ as BCQ
from counterpoint.learners.baselines.pets import PETS as PETS
from counterpoint.learners.baselines.pets import Planner as Planner
from counterpoint.learners.baselines.steve import MVE as MVE
from counterpoint.learners.baselines.steve import STEVE as STEVE
from counterpoint.learners.ctrl_g import CTRLg as CTRLg
from counterpoint.learners.ctrl_p import CTRLp as CTRLp
from counterpoint.learners.d3qn import D3QN as D3QN
from counterpoint.learners.evolution import CrossEntropy as CrossEntropy
from counterpoint.learners.evolution import EvolutionStrategy as EvolutionStrategy
from counterpoint.learners.methods import named_methods as named_methods
from counterpoint.learners.near_practice import NearPractice as NearPractice
from counterpoint.learners.practice import Constant as Constant
from counterpoint.learners.practice import Practice as Practice
from counterpoint.learners.rollout_rows import RolloutRows as RolloutRows
from counterpoint.learners.search import Search as Search
