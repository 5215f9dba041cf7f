"""The headline is what the rows say: everywhere, somewhere, nowhere, and against whom not."""

from typing import Any

import numpy as np
import pytest

from counterpoint.tasks.cartpole import PLANETS
from reproduction.pages.hd import hd_page
from reproduction.pages.headline import Headline
from reproduction.summary import write_summary

SEEDS = range(20)
NOISE = np.random.default_rng(0).normal(size=(9, 20))


def scores(**levels: tuple[float, float]) -> dict[tuple[str, str], dict[int, float]]:
    """Methods at 50 and 250 trials, each seed a little off."""
    return {
        (name, size): {seed: level + float(NOISE[2 * i + j, seed]) for seed in SEEDS}
        for i, (name, own) in enumerate(levels.items())
        for j, (size, level) in enumerate(zip(("50", "250"), own, strict=True))
    }


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((90.0, 90.0), "**ours is above all 2 baselines everywhere**, at 50 and 250 trials. Paired"),
        ((90.0, 60.0), '**ours is above all 2 baselines at 50 trials; "everywhere" does not hold:** it is not told'
                       " apart from b at 250 trials. Paired"),
        ((90.0, 50.0), '**ours is above all 2 baselines at 50 trials; "everywhere" does not hold:** it is below b at'
                       " 250 trials, and not told apart from a at 250 trials. Paired"),
        ((60.0, 60.0), "**ours is nowhere above all 2 baselines:** it is not told apart from b everywhere. Paired"),
        ((40.0, 40.0), "**ours is nowhere above all 2 baselines:** it is below a and b everywhere. Paired"),
    ],
)  # fmt: skip
def test_the_headline_in_words(ours: tuple[float, float], said: str) -> None:
    found = Headline.of(scores(ours=ours, a=(50.0, 50.0), b=(60.0, 60.0)), ["ours"], ["a", "b"])
    text = found.text("at {} trials")
    assert text.startswith(said)
    assert text.endswith("over 20 seeds, with simultaneous 95% intervals for all 4 comparisons (max-t over swaps of"
                         " the two methods).")  # fmt: skip
    assert found.table().splitlines()[0] == "| comparison | 50 | 250 |"


def test_a_family_has_the_seeds_that_all_have_and_the_pairs_that_exist() -> None:
    table = scores(ours=(90.0, 90.0), a=(50.0, 50.0), b=(60.0, 60.0))
    del table["a", "250"]
    table["b", "50"] = {seed: table["b", "50"][seed] for seed in range(5)}
    found = Headline.of(table, ["ours"], ["a", "b"])
    assert [(c.baseline, c.place) for c in found.comparisons] == [("a", "50"), ("b", "50"), ("b", "250")]
    assert found.seeds == 5
    assert "5 seeds are too few for them to hold" in found.text()
    assert not Headline.of(table, ["nobody"], ["a"]).comparisons


def sd_rows(ours: float) -> list[dict[str, Any]]:
    found = scores(**{"CTRL_g, default SCM": (90.0, ours), "D3QN": (50.0, 50.0), "PILCO": (99.0, 99.0)})
    return [
        {"method": method, "trials": int(size), "seed": seed, "return_selected": value, "return_last": value}
        for (method, size), own in found.items()
        for seed, value in own.items()
    ]


@pytest.mark.parametrize(("ours", "said"), [(90.0, "all 1 baselines everywhere**"), (50.0, "does not hold:**")])
def test_the_sd_page_opens_with_it_and_counts_the_papers_baselines_alone(ours: float, said: str, tmp_path: Any) -> None:
    pairs = [("CTRL_g, default SCM", "D3QN"), ("CTRL_g, default SCM", "PILCO")]
    page = write_summary("sd", sd_rows(ours), pairs, tmp_path, paper="random").read_text()
    assert said in page.split("\n\n")[1]
    assert "## Headline comparisons by number of trials" in page
    assert "Headline" not in write_summary("ablations", sd_rows(ours), pairs, tmp_path).read_text()


def test_the_hd_page_opens_with_it() -> None:
    levels = {"CTRL_p + search": 90.0, "D3QN": 50.0, "CTRL_g, default SCM": 60.0, "known gravity": 99.0}
    rows = [
        {"method": method, "planet": planet, "seed": seed, "return_selected": level + float(NOISE[i, seed])}
        for i, (method, level) in enumerate(levels.items())
        for planet in PLANETS
        for seed in SEEDS
    ]
    page = hd_page(rows, "random", "hd")
    assert "**CTRL_p + search is above all 2 baselines everywhere**" in page.splitlines()[2]
    assert "their mean" in page
