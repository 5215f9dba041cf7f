"""What a fit by likelihood holds out is whole subjects, chosen by the seed, and nothing else is learned from."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import pad
from counterpoint.nets.conditional import ConditionalLaw
from counterpoint.nets.laws import Gaussian
from counterpoint.nets.likelihood import (
    DEPARTURE,
    Likelihood,
    LikelihoodTraining,
    VariationPenalty,
    held_out_last,
)
from counterpoint.nets.training import Monitor, Schedule
from helpers.recipes import BRIEF, DENSITY
from reproduction.tasks.structural_problems import (
    Additive,
    sample,
)

SEEDS = range(50)
SHARES = pytest.mark.parametrize("share", [0.05, 0.15, 0.5, 0.9])


def shuffled(sizes: Tensor, seed: int = 0) -> Tensor:
    """Subjects of these sizes, their rows anywhere in the table and their numbers with gaps."""
    subject = (3 * torch.arange(len(sizes)) + 7).repeat_interleave(sizes)
    return subject[torch.randperm(len(subject), generator=generator(seed, "table"))]


MANY = shuffled(torch.arange(80) % 9 + 1)
FEW = shuffled(torch.tensor([6, 30, 4, 20]))


def columns(subject: Tensor) -> dict[str, Tensor]:
    """A table that tells every row's subject in its context."""
    y = torch.randn(len(subject), 1, generator=generator(0, "y"))
    return {"context": subject[:, None].float(), "y": y, "subject": subject}


def learner(tables: list[Tensor], how: Likelihood, seeds: list[int]) -> LikelihoodTraining:
    law = ConditionalLaw(len(tables), 1, 1, Gaussian(), (4,))
    return LikelihoodTraining(law, [columns(subject) for subject in tables], seeds, how)


class TestOrder:
    @SHARES
    @pytest.mark.parametrize("subject", [MANY, FEW], ids=["many", "few"])
    def test_no_subject_stands_on_both_sides(self, subject: Tensor, share: float) -> None:
        for seed in SEEDS:
            order, kept = held_out_last(subject, share, seed)
            assert torch.equal(order.sort().values, torch.arange(len(subject)))
            assert 0 < kept < len(subject)
            assert not torch.isin(subject[order[:kept]], subject[order[kept:]]).any()

    @SHARES
    def test_the_share_is_the_largest_that_whole_subjects_allow(self, share: float) -> None:
        """At most the share, up to one row of rounding, and short of it by less than a subject."""
        wanted, largest = share * len(MANY), int(MANY.bincount().max())
        for seed in SEEDS:
            aside = len(MANY) - held_out_last(MANY, share, seed)[1]
            assert wanted - largest < aside <= wanted + 1

    def test_the_seed_decides_who_is_held_out(self) -> None:
        asides = [
            frozenset(MANY[order[kept:]].tolist()) for order, kept in (held_out_last(MANY, 0.2, s) for s in SEEDS)
        ]
        assert len(set(asides)) == len(SEEDS)
        assert torch.equal(held_out_last(MANY, 0.2, 3)[0], held_out_last(MANY, 0.2, 3)[0])

    def test_every_subject_is_held_out_as_often(self) -> None:
        """Of 80 subjects each is aside in about its share of 400 seeds, large ones and small ones."""
        count = torch.zeros(int(MANY.max()) + 1)
        for seed in range(400):
            order, kept = held_out_last(MANY, 0.25, seed)
            count[MANY[order[kept:]].unique()] += 1 / 400
        assert count[MANY.unique()].min() > 0.12
        assert count[MANY.unique()].max() < 0.38

    @SHARES
    def test_subjects_of_one_row_are_in_the_order_of_a_permutation(self, share: float) -> None:
        for seed in SEEDS:
            order, kept = held_out_last(torch.arange(97), share, seed)
            assert torch.equal(order, torch.randperm(97, generator=generator(seed, "held out")))
            assert kept == int(97 * (1 - share))

    def test_a_table_of_one_subject_is_cut_by_rows(self) -> None:
        order, kept = held_out_last(torch.full((40,), 5), 0.15, 1)
        assert torch.equal(order, torch.randperm(40, generator=generator(1, "held out")))
        assert kept == 34

    def test_one_of_two_subjects_is_held_out(self) -> None:
        subject = shuffled(torch.tensor([12, 12]))
        assert {held_out_last(subject, 0.1, seed)[1] for seed in SEEDS} == {12}

    def test_most_rows_are_learned_from_however_unequal_the_subjects(self) -> None:
        subject = shuffled(torch.tensor([1000, 10]))
        assert {held_out_last(subject, 0.15, seed)[1] for seed in SEEDS} == {1000}

    def test_one_row_at_least_is_learned_from(self) -> None:
        assert held_out_last(torch.zeros(10, dtype=torch.long), 0.95, 0)[1] == 1

    def test_nothing_is_held_out_of_a_share_of_nothing(self) -> None:
        order, kept = held_out_last(MANY, 0.0, 0)
        assert kept == len(order) == len(MANY)


class TestLearner:
    @pytest.mark.parametrize("bootstrap", [False, True])
    def test_what_is_learned_from_and_what_is_scored_share_no_subject(self, bootstrap: bool) -> None:
        """Two tables of different lengths side by side; padding is neither."""
        tables, how = [MANY, FEW], replace(BRIEF, held_out=0.3, bootstrap=bootstrap)
        for seed in range(10):
            fitted = learner(tables, how, [seed, seed + 100])
            for member, subject in enumerate(tables):
                begins = sum(map(len, tables[:member]))
                checked = fitted.checked[member, fitted.counts[member].bool()]
                drawn = fitted.draw(member, generator(seed), 400)["rows"].unique()
                assert not torch.isin(fitted.context[drawn], fitted.context[checked]).any()
                own = torch.cat([fitted.learned[member], checked]) - begins
                assert bootstrap or torch.equal(own.sort().values, torch.arange(len(subject)))
                assert torch.isin(drawn, fitted.learned[member]).all()
                kept = torch.ones(len(subject), dtype=torch.bool).index_fill(0, checked - begins, False)
                torch.testing.assert_close(fitted.law.context.mean[member, 0, 0], subject[kept].float().mean())

    def test_members_of_one_table_share_it_in_memory(self) -> None:
        one, other = columns(MANY), columns(FEW)
        law = ConditionalLaw(3, 1, 1, Gaussian(), (4,))
        alone = LikelihoodTraining(law, [one, one, one], [0, 1, 2], BRIEF)
        assert alone.context.data_ptr() == one["context"].data_ptr()
        beside = LikelihoodTraining(law, [one, one, other], [0, 1, 2], BRIEF)
        assert len(beside.context) == len(MANY) + len(FEW)
        assert torch.equal(beside.context[beside.learned[2]], other["context"][beside.learned[2] - len(MANY)])

    def test_a_check_scores_whole_subjects_up_to_a_number_of_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = learner([MANY], replace(BRIEF, held_out=0.5), [0]).checked[0]
        monkeypatch.setattr("counterpoint.nets.likelihood.CHECKED_ROWS", 50)
        for seed in range(10):
            few = learner([MANY], replace(BRIEF, held_out=0.5), [seed]).checked[0]
            assert 50 - int(MANY.bincount().max()) < len(few) <= 50
            assert torch.equal(torch.isin(MANY, MANY[few]).nonzero()[:, 0], few.sort().values)
        assert len(whole) > 100
        assert learner([torch.zeros(400, dtype=torch.long)], replace(BRIEF, held_out=0.5), [0]).checked.shape == (1, 50)

    def test_a_score_is_the_mean_over_the_checked_rows_however_they_are_cut(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fitted = learner([MANY, FEW], replace(BRIEF, held_out=0.3), [0, 1])
        monkeypatch.setattr("counterpoint.nets.likelihood.AT_ONCE", 7)
        for member, score in enumerate(fitted.score()):
            rows = fitted.checked[member, fitted.counts[member].bool()]
            log_prob = fitted.law.log_prob(*(c[rows].expand(2, -1, -1) for c in (fitted.context, fitted.y)))
            torch.testing.assert_close(score, -log_prob[member].sum(-1).mean())

    def test_a_long_table_starts_from_its_first_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("counterpoint.nets.likelihood.START_ROWS", 40)
        started: list[int] = []
        monkeypatch.setattr(
            "counterpoint.nets.likelihood.pad",
            lambda tables: started.extend(len(each["y"]) for each in tables) or pad(tables),
        )
        fitted = learner([MANY], BRIEF, [0])
        assert started == [40]
        torch.testing.assert_close(fitted.law.context.mean[0], fitted.context[fitted.learned[0][:40]].mean(0)[None])
        assert fitted.rows == fitted.kept[0] > 300

    def test_the_first_report_comes_before_the_first_step(self) -> None:
        reports: list[tuple[str, int, int]] = []
        DENSITY.fit(sample(Additive(), 60, 0), monitor=Monitor(report=lambda *told: reports.append(told)))
        assert reports[0] == ("fit", 0, DENSITY.likelihood.schedule.steps)
        assert reports[1][1] > 0

    def test_a_bootstrap_is_every_members_own_draw_with_return(self) -> None:
        alike = torch.arange(400)
        fitted = learner([alike, alike], replace(BRIEF, bootstrap=True, held_out=0.2), [0, 1])
        assert fitted.kept == [320, 320]
        seen = [fitted.draw(k, generator(k), 500)["rows"].unique() for k in (0, 1)]
        again = fitted.draw(0, generator(9), 500)["rows"].unique()
        for rows, kept in zip(seen, fitted.kept, strict=True):
            assert len(rows) / kept == pytest.approx(1 - 1 / torch.e, abs=0.06)
        assert torch.equal(again, seen[0]), "the draw is made once, whatever the minibatches"
        assert not torch.equal(seen[0], seen[1])

    def test_without_a_bootstrap_every_kept_row_is_learned_from(self) -> None:
        fitted = learner([MANY], replace(BRIEF, held_out=0.2), [0])
        drawn = fitted.draw(0, generator(0), 500)["rows"].unique()
        assert torch.equal(drawn, held_out_last(MANY, 0.2, 0)[0][: fitted.kept[0]].sort().values)

    @pytest.mark.parametrize("how", [BRIEF, Likelihood(Schedule(steps=20), held_out=0.0)], ids=["checked", "unchecked"])
    def test_one_subject_is_enough_to_fit(self, how: Likelihood) -> None:
        rows = sample(Additive(), 60, 0)
        alone = replace(rows, subject=torch.zeros(60, dtype=torch.long))
        model = replace(DENSITY, likelihood=how).fit(alone)
        torch.testing.assert_close(model.counterfactual(alone, alone.action), alone.next_state, rtol=0, atol=1e-5)


def test_the_price_of_variation_by_hand() -> None:
    """Spreads 0, .1 and .3 of three numbers: 2/√25 · .1·(log 1 + log 2 + log 4), but for the 1e-6 under the root."""
    raw = torch.zeros(1, 2, 1, 3)
    raw[0, :, 0] = torch.tensor([[7.0, 0.1, 0.3], [7.0, -0.1, -0.3]]) / 2**0.5
    price = VariationPenalty(2.0)(raw, torch.tensor([25.0]))
    expected = 2 / 5 * DEPARTURE * torch.tensor([1.0, 2.0, 4.0]).log().sum()
    torch.testing.assert_close(price, expected[None], rtol=0, atol=1e-3)


def test_the_gradient_of_the_price_is_its_slope() -> None:
    """Against finite differences, for numbers that lie in memory as a network leaves them: rows last."""
    spreads = torch.tensor([0.01, 0.1, 3.0], dtype=torch.float64)[:, None, None]
    raw = (spreads * torch.randn(2, 3, 2, 6, generator=generator(0), dtype=torch.float64)).requires_grad_()
    rows = torch.tensor([25.0, 100.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda raw: VariationPenalty(2.0)(raw.permute(0, 3, 2, 1), rows), (raw,))
