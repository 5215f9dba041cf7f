"""Headline of a result page in words: which methods exceed all baselines, where, and where not.

"Above" is a paired difference in mean return whose interval excludes zero, with intervals that hold simultaneously for
every method against every baseline in every place (`counterpoint.core.statistics.simultaneous`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from counterpoint.core.statistics import Interval
from counterpoint.core.tables import markdown_table
from reproduction.statistics import simultaneous

FEW_SEEDS = 10
"""With fewer seeds the intervals are too narrow."""
Scores = Mapping[tuple[str, str], Mapping[int, float]]
"""The score of each seed, by method and place: a size of the log, or a planet."""


@dataclass(frozen=True)
class Comparison:
    """The paired difference of a method from a baseline in one place."""

    method: str
    baseline: str
    place: str
    difference: Interval


@dataclass(frozen=True)
class Headline:
    """Simultaneous comparisons of one family."""

    comparisons: Sequence[Comparison]
    seeds: int

    @classmethod
    def of(cls, scores: Scores, methods: Sequence[str], baselines: Sequence[str]) -> "Headline":
        """Compare each method with each baseline wherever both have scores, on the seeds that all of them share."""
        places = list(dict.fromkeys(place for _, place in scores))
        family = [
            (method, baseline, place)
            for method, baseline, place in product(methods, baselines, places)
            if {(method, place), (baseline, place)} <= scores.keys()
        ]
        compared = [scores[name, place] for method, baseline, place in family for name in (method, baseline)]
        seeds = sorted(set.intersection(*map(set, compared))) if compared else []
        if len(seeds) < 2:
            return cls((), len(seeds))
        differences = [[scores[m, p][seed] - scores[b, p][seed] for m, b, p in family] for seed in seeds]
        intervals = simultaneous(np.array(differences))
        return cls([Comparison(*names, ends) for names, ends in zip(family, intervals, strict=True)], len(seeds))

    def text(self, where: str = "at {}") -> str:
        """Return one paragraph; `where` puts places into a sentence."""
        sentences = [self._sentence(method, where) for method in dict.fromkeys(c.method for c in self.comparisons)]
        few = f" {self.seeds} seeds are too few for them to hold." if self.seeds < FEW_SEEDS else ""
        sentences.append(
            f"Paired differences in mean return over {self.seeds} seeds, with simultaneous 95% intervals for all"
            f" {len(self.comparisons)} comparisons (max-t over swaps of the two methods).{few}"
        )
        return " ".join(sentences)

    def table(self) -> str:
        """Return a Markdown table: a line for each pair of methods, a column for each place."""
        lines: dict[tuple[str, str], dict[str, str]] = {}
        for comparison in self.comparisons:
            pair = (comparison.method, comparison.baseline)
            line = lines.setdefault(pair, {"comparison": " − ".join(pair)})
            line[comparison.place] = f"{comparison.difference:.1f}"
        return markdown_table(list(lines.values()))

    def _sentence(self, method: str, where: str) -> str:
        family = [comparison for comparison in self.comparisons if comparison.method == method]
        places = list(dict.fromkeys(comparison.place for comparison in family))
        above = [place for place in places if all(c.difference.low > 0 for c in family if c.place == place)]
        others = f"all {len({comparison.baseline for comparison in family})} baselines"
        if above == places:
            return f"**{method} is above {others} everywhere**, {where.format(_listed(places))}."
        claim = f"{method} is nowhere above {others}"
        if above:
            claim = f'{method} is above {others} {where.format(_listed(above))}; "everywhere" does not hold'
        below = [comparison for comparison in family if comparison.difference.high < 0]
        unclear = [comparison for comparison in family if not comparison.difference.excludes(0)]
        parts = (("below", below), ("not told apart from", unclear))
        reasons = ", and ".join(f"{relation} {_against(part, places, where)}" for relation, part in parts if part)
        return f"**{claim}:** it is {reasons}."


def _against(comparisons: Sequence[Comparison], everywhere: Sequence[str], where: str) -> str:
    """List baselines with their places; baselines of the same places are listed together."""
    places: dict[str, tuple[str, ...]] = {}
    for comparison in comparisons:
        places[comparison.baseline] = (*places.get(comparison.baseline, ()), comparison.place)
    phrases = []
    for shared in dict.fromkeys(places.values()):
        baselines = _listed([baseline for baseline in places if places[baseline] == shared])
        spelled = "everywhere" if shared == tuple(everywhere) else where.format(_listed(shared))
        phrases.append(f"{baselines} {spelled}")
    return "; ".join(phrases)


def _listed(words: Sequence[str]) -> str:
    """Join words as "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
