"""The headline of a table in words, from its rows: which methods are above all baselines, where, and where not.

"Above" is a paired difference in mean return whose interval excludes zero while those of the whole family, every method
against every baseline everywhere, hold together (`evaluation/statistics.simultaneous`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from counterpoint.core.results import markdown_table
from counterpoint.core.statistics import Interval, simultaneous

FEW_SEEDS = 10
"""With fewer, the intervals do not hold what they promise."""
Scores = Mapping[tuple[str, str], Mapping[int, float]]
"""The score of each seed, by method and place: a size of the log, or a planet."""


@dataclass(frozen=True)
class Comparison:
    """A method against a baseline in one place."""

    method: str
    baseline: str
    place: str
    found: Interval


@dataclass(frozen=True)
class Headline:
    """The comparisons of one family."""

    comparisons: Sequence[Comparison]
    seeds: int

    @classmethod
    def of(cls, scores: Scores, methods: Sequence[str], baselines: Sequence[str]) -> "Headline":
        """Every method against every baseline wherever both have scores, on the seeds that all of them have."""
        places = list(dict.fromkeys(place for _, place in scores))
        family = [
            (method, baseline, place)
            for method, baseline, place in product(methods, baselines, places)
            if {(method, place), (baseline, place)} <= scores.keys()
        ]
        own = [scores[name, place] for method, baseline, place in family for name in (method, baseline)]
        seeds = sorted(set.intersection(*(set(each) for each in own))) if own else []
        if len(seeds) < 2:
            return cls((), len(seeds))
        differences = [[scores[m, p][seed] - scores[b, p][seed] for m, b, p in family] for seed in seeds]
        found = simultaneous(np.array(differences))
        return cls([Comparison(*each, told) for each, told in zip(family, found, strict=True)], len(seeds))

    def text(self, where: str = "at {}") -> str:
        """One paragraph; `where` puts places into a sentence."""
        sentences = [self._sentence(method, where) for method in dict.fromkeys(c.method for c in self.comparisons)]
        few = f" {self.seeds} seeds are too few for them to hold." if self.seeds < FEW_SEEDS else ""
        sentences.append(
            f"Paired differences in mean return over {self.seeds} seeds, by 95% intervals that hold together for all"
            f" {len(self.comparisons)} comparisons (max-t over swaps of the two methods).{few}"
        )
        return " ".join(sentences)

    def table(self) -> str:
        """A line a comparison, a column a place."""
        lines: dict[tuple[str, str], dict[str, str]] = {}
        for each in self.comparisons:
            line = lines.setdefault((each.method, each.baseline), {"comparison": f"{each.method} − {each.baseline}"})
            line[each.place] = f"{each.found:.1f}"
        return markdown_table(list(lines.values()))

    def _sentence(self, method: str, where: str) -> str:
        own = [each for each in self.comparisons if each.method == method]
        places = list(dict.fromkeys(each.place for each in own))
        holds = [place for place in places if all(c.found.low > 0 for c in own if c.place == place)]
        others = f"all {len({each.baseline for each in own})} baselines"
        if holds == places:
            return f"**{method} is above {others} everywhere**, {where.format(_listed(places))}."
        claim = f'{method} is above {others} {where.format(_listed(holds))}; "everywhere" does not hold'
        below = [each for each in own if each.found.high < 0]
        unclear = [each for each in own if each.found.low <= 0 <= each.found.high]
        told = (("below", below), ("not told apart from", unclear))
        reasons = ", and ".join(f"{how} {_against(some, places, where)}" for how, some in told if some)
        return f"**{claim if holds else f'{method} is nowhere above {others}'}:** it is {reasons}."


def _against(comparisons: Sequence[Comparison], everywhere: Sequence[str], where: str) -> str:
    """Baselines with their places, those of the same places together."""
    places: dict[str, tuple[str, ...]] = {}
    for each in comparisons:
        places[each.baseline] = (*places.get(each.baseline, ()), each.place)
    together: dict[tuple[str, ...], list[str]] = {}
    for baseline, own in places.items():
        together.setdefault(own, []).append(baseline)
    spelled = lambda own: "everywhere" if own == tuple(everywhere) else where.format(_listed(own))
    return "; ".join(f"{_listed(baselines)} {spelled(own)}" for own, baselines in together.items())


def _listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
