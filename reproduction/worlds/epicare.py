r"""EpiCare: patients with hidden episodic diseases, treated at no more than eight visits.

Hargrave, Spaeth and Grosenick, "EpiCare: a reinforcement learning benchmark for dynamic treatment regimes", NeurIPS
2024 (datasets and benchmarks). The parameters and their draws follow the authors' code,
github.com/masonhargrave/EpiCare, so that environment k here is their environment of seed k.
For a patient with disease d under treatment a:

    remission with probability p(d, a)·m_a, which ends the episode with reward 64 − c_a; otherwise
    d' ~ P(d, ·)·T_a·m,    x = σ(μ_{d'} + Σ_{d'}^{1/2} z + e_a + m_x),    reward −c_a − 0.5·Σx
    an adverse event (a symptom above 0.999·m_e) ends the episode with −64 more

The modifiers m are the patient's own, U(0.25, 1.75) of remission and transitions. Observed are the symptoms, to one
decimal. The behaviour policy is the authors' clinical trial: fixed probabilities, at most 8 to 1 in favour of
treatments that are good on average. A score is 100 × mean return / 64.

The authors' code run for 3,000 episodes gives random 3.1, clinical trial 17.9, standard of care 35.9 and oracle 93.2 in
environment 1 (standard errors 1.2, 1.2, 1.2 and .2), and −18.0, 6.0, 18.3 and 91.0 in environment 3. Published for
offline learning in environment 1: IQL's last checkpoint has 26 from 32 episodes, 24 from 64, 22 from 128, 26 from 256.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from counterpoint.core.seeding import derive
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.spaces import ActionSpace
from reproduction.worlds.base import Actions, Change, Columns, Hidden, World

DISEASES, TREATMENTS, SYMPTOMS, VISITS = 16, 16, 8, 8
REMISSION = 64.0
ADVERSE = 0.999
"""A symptom above this is an adverse event."""
SYMPTOM_PRICE = REMISSION / (2 * VISITS * SYMPTOMS)
SEVERE = 0.8
"""The standard of care gives nothing that makes a symptom above this worse."""
LEARNING_RATE = 0.5
"""With which the standard of care updates the value of a treatment during an episode."""
EXPLORATION = 8.0
"""Ratio of the clinical trial's largest probability to its smallest."""
DRAWS = 20_000
"""Draws by which the probability of an adverse event is computed."""
SYMPTOM_NAMES = tuple(f"symptom_{i}" for i in range(SYMPTOMS))


class Parameters(NamedTuple):
    """Everything that defines an environment."""

    mean: Float[np.ndarray, "d x"]
    root: Float[np.ndarray, "d x x"]
    """Factor of the covariance of the symptoms before the sigmoid."""
    remission: Float[np.ndarray, "d a"]
    cost: Float[np.ndarray, " a"]
    effect: Float[np.ndarray, "a x"]
    transition: Float[np.ndarray, "d d"]
    modifier: Float[np.ndarray, "a d"]
    share: Float[np.ndarray, " d"]
    """Stationary distribution of the diseases."""


@lru_cache(maxsize=8)
def parameters(environment: int) -> Parameters:
    """Draw the parameters of an environment in the order of the authors' code."""
    random = np.random.RandomState(environment)
    mean, root = np.zeros((DISEASES, SYMPTOMS)), np.zeros((DISEASES, SYMPTOMS, SYMPTOMS))
    for d in range(DISEASES):
        mean[d] = random.uniform(0.0, 2.0, SYMPTOMS)
        spread = np.sort(random.uniform(1.0, 2.0, SYMPTOMS))[::-1]
        rotation, _ = np.linalg.qr(random.normal(0, 1, (SYMPTOMS, SYMPTOMS)))
        root[d] = rotation * spread
    remission = _remission(random)
    cost, effect, modifier = np.zeros(TREATMENTS), np.zeros((TREATMENTS, SYMPTOMS)), np.zeros((TREATMENTS, DISEASES))
    for a in range(TREATMENTS):
        cost[a] = random.uniform(1, REMISSION / (2 * VISITS))
        affected = random.choice(SYMPTOMS, size=random.randint(1, SYMPTOMS), replace=False)
        for symptom in affected:
            effect[a, symptom] = random.uniform(-2.0, 1.0)
        modifier[a] = random.uniform(0.5, 1.5, DISEASES)
    transition = _transitions(random)
    return Parameters(mean, root, remission, cost, effect, transition, modifier, _stationary(transition))


def _remission(random: np.random.RandomState) -> Float[np.ndarray, "d a"]:
    """Draw which treatment cures which disease, and with what probability; every disease has at least one."""
    remission = np.zeros((DISEASES, TREATMENTS))
    for a in range(TREATMENTS):
        count = random.randint(1, max(2, DISEASES // 8))
        # The authors draw diseases here and others in the loop; the former only move the stream of random numbers.
        for _ in random.choice(DISEASES, size=count, replace=False):
            disease = random.randint(0, DISEASES)
            remission[disease, a] = random.uniform(0.8, 1.0)
    for d in range(DISEASES):
        if not remission[d].any():
            treatment = random.randint(0, TREATMENTS)
            remission[d, treatment] = random.uniform(0.8, 1.0)
    return remission


def _transitions(random: np.random.RandomState) -> Float[np.ndarray, "d d"]:
    """Draw transitions between connected diseases."""
    transition = np.eye(DISEASES)
    for i in range(DISEASES):
        for j in range(DISEASES):
            if i != j and random.rand() < 1 / DISEASES:
                transition[i, j] = random.uniform(0.01, 0.2)
                transition[j, i] = random.uniform(0.01, 0.2)
    np.fill_diagonal(transition, 2.0 - transition.sum(1))
    return transition


def _stationary(transition: Float[np.ndarray, "d d"]) -> Float[np.ndarray, " d"]:
    """Return the stationary distribution; a communicating class weighs as much as it has diseases."""
    # From uniform diseases: every class keeps its share, and converges within itself.
    share = np.full(DISEASES, 1 / DISEASES) @ np.linalg.matrix_power(0.5 * (np.eye(DISEASES) + transition), 2**16)
    return share / share.sum()


@dataclass(frozen=True)
class EpiCare(World):
    """One of the authors' environments."""

    environment: int = 1
    """The seed of the environment's parameters."""

    name: ClassVar[str] = "epicare"
    state: ClassVar[tuple[str, ...]] = SYMPTOM_NAMES
    action: ClassVar[tuple[str, ...]] = ("treatment",)
    marker: ClassVar[str] = ""
    has_none: ClassVar[bool] = False
    evaluation_subjects: ClassVar[int] = 4000

    @property
    def steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return VISITS

    @cached_property
    def parameters(self) -> Parameters:
        """The environment's parameters."""
        return parameters(self.environment)

    @cached_property
    def expected_reward(self) -> Float[np.ndarray, "d a"]:
        """Expected reward of a treatment of a disease, without modifiers, as the authors' policies compute it."""
        p = self.parameters
        random = np.random.default_rng(derive(self.environment, "adverse events"))
        normal = random.standard_normal((DRAWS, SYMPTOMS))
        limit = np.log(ADVERSE / (1 - ADVERSE))
        adverse = np.zeros((DISEASES, TREATMENTS))
        for d in range(DISEASES):
            symptoms = p.mean[d] + normal @ p.root[d].T
            for a in range(TREATMENTS):
                adverse[d, a] = (symptoms > limit - p.effect[a]).any(1).mean()
        symptom_cost = SYMPTOM_PRICE * p.mean.sum(1, keepdims=True)
        return p.remission * REMISSION - adverse * REMISSION - p.cost - symptom_cost

    @cached_property
    def marginal_reward(self) -> Float[np.ndarray, " a"]:
        """Expected reward of a treatment, averaged over the diseases."""
        return self.parameters.share @ self.expected_reward

    @cached_property
    def trial(self) -> Float[np.ndarray, " a"]:
        """Action probabilities of the clinical trial."""
        below = self.marginal_reward - self.marginal_reward.max()
        probability = np.exp(-np.log(EXPLORATION) * below / below.min())
        return probability / probability.sum()

    def begin(self, subjects: int, random: np.random.Generator) -> Hidden:
        disease = random.choice(DISEASES, size=subjects, p=self.parameters.share)
        return {
            "disease": disease,
            "transition": random.uniform(0.25, 1.75, (subjects, DISEASES)),
            "remission": random.uniform(0.25, 1.75, (subjects, TREATMENTS)),
            "threshold": ADVERSE * random.uniform(ADVERSE, 1 / ADVERSE, subjects),
            "shift": random.uniform(-2.0, 1.0, (subjects, SYMPTOMS)),
            "symptoms": self._symptoms(disease, random.standard_normal((subjects, SYMPTOMS)), 0.0),
            "visit": np.zeros(subjects, dtype=int),
            "values": np.tile(self.marginal_reward, (subjects, 1)),
        }

    def _symptoms(
        self, disease: np.ndarray, normal: Float[np.ndarray, "n x"], shift: Float[np.ndarray, "n x"] | float
    ) -> Float[np.ndarray, "n x"]:
        p = self.parameters
        before = p.mean[disease] + np.einsum("nij,nj->ni", p.root[disease], normal) + shift
        return 1 / (1 + np.exp(-before))

    def observe(self, hidden: Hidden) -> Columns:
        # The authors round the symptoms of every visit but the first.
        rounded = np.where(hidden["visit"][:, None] > 0, np.round(hidden["symptoms"], 1), hidden["symptoms"])
        return {name: rounded[:, i] for i, name in enumerate(SYMPTOM_NAMES)}

    def noise(self, subjects: int, random: np.random.Generator) -> Float[np.ndarray, "n u"]:
        return np.concatenate([random.random((subjects, 2)), random.standard_normal((subjects, SYMPTOMS))], 1)

    def step(self, hidden: Hidden, action: Actions, noise: Float[np.ndarray, "n u"]) -> Change:
        p, rows, treatment = self.parameters, np.arange(len(action)), action[:, 0].astype(int)
        disease = hidden["disease"]
        remitted = noise[:, 0] < p.remission[disease, treatment] * hidden["remission"][rows, treatment]
        weights = p.transition[disease] * p.modifier[treatment] * hidden["transition"]
        reached = np.cumsum(weights, 1) / weights.sum(1, keepdims=True)
        next_disease = (noise[:, 1, None] > reached).sum(1).clip(0, DISEASES - 1)
        symptoms = self._symptoms(next_disease, noise[:, 2:], p.effect[treatment] + hidden["shift"])
        adverse = (symptoms.max(1) > hidden["threshold"]) & ~remitted
        left = SYMPTOM_PRICE * symptoms.sum(1) + REMISSION * adverse
        reward = np.where(remitted, REMISSION, -left) - p.cost[treatment]
        visit = hidden["visit"] + 1
        values = hidden["values"].copy()
        values[rows, treatment] += LEARNING_RATE * (reward - values[rows, treatment])
        after = {**hidden, "disease": next_disease, "symptoms": symptoms, "visit": visit, "values": values}
        return Change(after, reward, remitted | adverse | (visit >= VISITS), adverse)

    def behave(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        return random.choice(TREATMENTS, size=len(hidden["visit"]), p=self.trial)[:, None].astype(float)

    def at_random(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        """Draw every treatment with the same probability."""
        return random.integers(TREATMENTS, size=(len(hidden["visit"]), 1)).astype(float)

    def oracle(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        """Return the best treatment of the hidden disease."""
        return self.expected_reward.argmax(1)[hidden["disease"]][:, None].astype(float)

    def standard_of_care(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        """Return the allowed treatment of the highest value, which is updated during the episode."""
        return _best(hidden["values"], self._allowed(columns))

    def textbook(self, columns: Columns) -> Actions:
        """Return the allowed treatment that is best on average."""
        values = np.tile(self.marginal_reward, (len(columns[SYMPTOM_NAMES[0]]), 1))
        return _best(values, self._allowed(columns))

    def _allowed(self, columns: Columns) -> Bool[np.ndarray, "n a"]:
        """Return which treatments make no severe symptom worse."""
        severe = np.stack([columns[name] for name in SYMPTOM_NAMES], 1) > SEVERE
        harmful = severe[:, None] & (self.parameters.effect > 0)
        return np.asarray(~harmful.any(2))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"T{number:02}" for number in range(TREATMENTS))

    def label(self, action: Actions) -> Mapping[str, Any]:
        return {"treatment": [self.labels[int(number)] for number in action[:, 0]]}

    def amounts(self, choice: Mapping[str, Any]) -> list[float]:
        return [float(self.labels.index(choice["treatment"]))]

    @property
    def space(self) -> ActionSpace | None:
        return None

    @property
    def knowledge(self) -> Knowledge:
        bounds = tuple((name, 0.0, 1.0) for name in SYMPTOM_NAMES)
        return Knowledge(bounds=bounds, reward_range=(-REMISSION - REMISSION / VISITS, REMISSION))


def _best(values: Float[np.ndarray, "n a"], allowed: Bool[np.ndarray, "n a"]) -> Actions:
    """Return the allowed action of the highest value; any action where none is allowed."""
    allowed = allowed | ~allowed.any(1, keepdims=True)
    return np.where(allowed, values, -np.inf).argmax(1)[:, None].astype(float)


def score(returns: Float[np.ndarray, " n"]) -> float:
    """Return the authors' score: 100 × mean return / 64."""
    return float(100 * returns.mean() / REMISSION)
