"""What `test_classic.py` shares with other test modules."""

from counterpoint.learners.evolution import CrossEntropy
from counterpoint.learners.search import Search
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.laws import Gaussian
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule

MODEL = DensitySCM(Gaussian(), 1, (8,), likelihood=Likelihood(Schedule(steps=20)), variation_penalty=0.0)

SEARCH = Search(MODEL, optimizer=CrossEntropy(8, 2), schedule=Schedule(steps=2, check_every=1), restarts=1, horizon=5)
