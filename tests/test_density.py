"""Laws that rise with their noise, conditional laws of vectors, and the SCMs made of them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from zuko.transforms import MonotonicRQSTransform

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job, Padded
from counterpoint.models.scm.density import (
    DefaultLikelihood,
    DensitySCM,
    LawMechanism,
    default_scm,
    fit_graph,
    interquartile_mean,
    location_scale,
    quantile,
    spline_flow,
)
from counterpoint.nets.conditional import ConditionalLaw, Parents
from counterpoint.nets.laws import (
    Gaussian,
    Law,
    LawParameters,
    Mixture,
    SkewedSpline,
    Spline,
    SplineTable,
)
from counterpoint.nets.likelihood import (
    Likelihood,
    LikelihoodTraining,
    VariationPenalty,
)
from counterpoint.nets.training import Schedule
from reproduction.tasks.structural_problems import (
    TRIANGLE_NLIN,
    Independent,
    Skewed,
    sample,
)

LAWS = [Gaussian(), Spline(), SkewedSpline(), Mixture()]
EVERY_LAW = pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
BRIEF = Likelihood(Schedule(steps=30, check_every=10), batch=64)
QUICK = DensitySCM(ensemble=2, hidden=(16,), likelihood=BRIEF)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_table(count: int) -> dict[str, Tensor]:
    context, y = normal(count, 2, dtype=torch.float32), normal(count, 3, seed=1, dtype=torch.float32)
    return {"context": context, "y": y, "subject": torch.arange(count)}


def raw_numbers(
    law: Law, count: int, seed: int = 0, size: float = 0.7, dtype: torch.dtype = torch.float64
) -> LawParameters:
    random = torch.Generator().manual_seed(seed)
    own, shared = (size * torch.randn(count, width, generator=random, dtype=dtype) for width in (law.width, law.shared))
    return LawParameters(own, shared)


def conditional(law: Law, parents: Parents = (), size: int = 3, seed: int = 0) -> ConditionalLaw:
    """Two members with weights, lines and shapes all away from zero."""
    module = ConditionalLaw(2, 2, size, law, (8,), parents)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=random))
        module.slope.copy_(torch.randn(module.slope.shape, generator=random))
        module.y.mean.fill_(0.3)
        module.y.scale.fill_(1.7)
        if module.triangular:
            module.parent_slope.copy_(0.5 * torch.ones(2, size, size) * module.parents.T)
            module.rest_scale.fill_(0.8)
    return module.double()


class NoCopies(TorchDispatchMode):
    """Raises at a copy from one device to another."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            assert torch.device(kwargs.get("device") or args[0].device) == args[0].device, "a copy between devices"
        return func(*args, **kwargs)


class TestLaws:
    @EVERY_LAW
    def test_nothing_is_copied_from_another_device(self, law: Law) -> None:
        """As a graph of a GPU's work cannot: tried on a device that holds no numbers."""
        raw = LawParameters(*(torch.empty(7, width, device="meta") for width in (law.width, law.shared)))
        y = torch.empty(7, device="meta")
        with NoCopies():
            for answer in (law.log_prob(raw, y), law.abduct(raw, y), law.predict(raw, y)):
                assert answer.device == y.device

    @EVERY_LAW
    def test_density_integrates_to_one(self, law: Law) -> None:
        y = torch.linspace(-60, 60, 240_001, dtype=torch.float64)
        for each in range(4):
            raw = LawParameters(*(part[each].expand(len(y), -1) for part in raw_numbers(law, 4)))
            assert torch.trapezoid(law.log_prob(raw, y).exp(), y) == pytest.approx(1, abs=1e-4)

    @EVERY_LAW
    def test_predict_and_abduct_undo_each_other_far_into_the_tails(self, law: Law) -> None:
        u = torch.linspace(-4, 4, 41, dtype=torch.float64)
        raw = raw_numbers(law, len(u))
        torch.testing.assert_close(law.abduct(raw, law.predict(raw, u)), u, rtol=0, atol=1e-5)
        y = 3 * u
        torch.testing.assert_close(law.predict(raw, law.abduct(raw, y)), y, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("law", [Gaussian(), Spline(), SkewedSpline()], ids=lambda law: type(law).__name__)
    def test_the_prediction_rises_strictly_with_the_noise(self, law: Law) -> None:
        u = torch.linspace(-6, 6, 500, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(law.predict(raw_numbers(law, 500, size=2.0), u).sum(), u)
        assert (slope > 0).all()

    def test_the_mixtures_prediction_rises_strictly_with_the_noise(self) -> None:
        """Bisection has no gradient: one law, noises in order."""
        u = torch.linspace(-5, 5, 200, dtype=torch.float64)
        raw = LawParameters(*(part.expand(200, -1) for part in raw_numbers(Mixture(), 1)))
        assert (Mixture().predict(raw, u).diff() > 0).all()

    @EVERY_LAW
    def test_log_density_is_the_change_of_variables(self, law: Law) -> None:
        """log p(y) = log φ(u) + log du/dy."""
        y = torch.linspace(-3, 3, 61, dtype=torch.float64, requires_grad=True)
        raw = raw_numbers(law, 61)
        u = law.abduct(raw, y)
        (slope,) = torch.autograd.grad(u.sum(), y)
        expected = torch.distributions.Normal(0.0, 1.0).log_prob(u) + slope.log()
        torch.testing.assert_close(law.log_prob(raw, y), expected, rtol=0, atol=1e-6)

    @EVERY_LAW
    @pytest.mark.parametrize("shared", [40, 1], ids=["one a value", "one for all values"])
    def test_the_gradient_of_the_log_density_is_its_slope(self, law: Law, shared: int) -> None:
        """Against finite differences, also far out where the base is a line."""
        raw, y = raw_numbers(law, 40, size=1.0), torch.linspace(-30, 30, 40, dtype=torch.float64)
        given = [part.requires_grad_() for part in (raw.own, raw.shared[:shared], y)]
        assert torch.autograd.gradcheck(
            lambda own, base, y: law.log_prob(LawParameters(own, base), y), given, atol=1e-6
        )

    @pytest.mark.parametrize("law", [Gaussian(), Spline(), SkewedSpline()], ids=lambda law: type(law).__name__)
    def test_zeros_are_the_standard_normal_law(self, law: Law) -> None:
        y = torch.linspace(-4, 4, 9)
        raw = LawParameters(torch.zeros(9, law.width), torch.zeros(9, law.shared))
        torch.testing.assert_close(law.abduct(raw, y), y)

    def test_a_bend_turns_the_slopes_left_and_right_of_its_knot(self) -> None:
        """b(z) = z + s(√(1+(z−t)²) − 1) with s = .6·tanh(1): t keeps its place, slopes tend to 1 ± s."""
        law = SkewedSpline(knots=(0.5,), bins=2)
        raw = LawParameters(
            torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64), torch.zeros(1, law.shared, dtype=torch.float64)
        )
        s = 0.6 * torch.tanh(torch.tensor(1.0, dtype=torch.float64))
        u = torch.tensor([0.5, 40.0, 41.0, -41.0, -40.0], dtype=torch.float64)
        y = law.predict(LawParameters(raw.own.expand(5, -1), raw.shared), u)
        assert y[0] == pytest.approx(0.5)
        assert y[2] - y[1] == pytest.approx(float(1 + s), abs=1e-3)
        assert y[4] - y[3] == pytest.approx(float(1 - s), abs=1e-3)


@pytest.mark.parametrize("shape", [(50,), (3, 50, 4)], ids=["one a value", "one for many values"])
def test_the_table_of_pieces_is_the_spline(shape: tuple[int, ...]) -> None:
    leading = shape if len(shape) == 1 else (3, 1, 4)
    raw = 2 * normal(*leading, 23)
    spline, table = MonotonicRQSTransform(*raw.split([8, 8, 7], -1), bound=5.0, slope=1e-3), SplineTable(raw, 8)
    x = 4 * normal(*shape, seed=1)
    assert (x.abs() > 5).any()
    torch.testing.assert_close(table.forward(x), spline(x))
    torch.testing.assert_close(table.inverse(x), spline.inv(x))
    u, log_slope = spline.call_and_ladj(x)
    torch.testing.assert_close(table.log_density(x), torch.distributions.Normal(0.0, 1.0).log_prob(u) + log_slope)


@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_the_table_of_pieces_has_the_gradients_of_the_spline(direction: str) -> None:
    """By zuko's spline under automatic differentiation, raw numbers far beyond where they are softened included."""
    raw, x = (5 * normal(3, 1, 23)).requires_grad_(), 4 * normal(3, 50, seed=1)
    spline = MonotonicRQSTransform(*raw.split([8, 8, 7], -1), bound=5.0, slope=1e-3)
    expected = spline(x) if direction == "forward" else spline.inv(x)
    found = getattr(SplineTable(raw, 8), direction)(x)
    weights = normal(3, 50, seed=2)
    (by_table,), (by_spline,) = (torch.autograd.grad((y * weights).sum(), raw) for y in (found, expected))
    assert by_spline.abs().max() > 0.1
    torch.testing.assert_close(by_table, by_spline)


class TestConditionalLaw:
    @EVERY_LAW
    @pytest.mark.parametrize(
        "parents", [(), ((), (0,), (0, 1)), ((2,), (0, 2), ())], ids=["diagonal", "chain", "graph"]
    )
    def test_predict_and_abduct_undo_each_other(self, law: Law, parents: Parents) -> None:
        module = conditional(law, parents)
        context, noise = (normal(2, 20, width) for width in (2, 3))
        noise[:, 0], noise[:, 1] = 4.0, -4.0
        y = module.predict(context, noise)
        torch.testing.assert_close(module.abduct(context, y), noise, rtol=0, atol=1e-5)
        torch.testing.assert_close(module.predict(context, module.abduct(context, y)), y, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("parents", [(), ((), (0,), (0, 1)), ((2,), (2,), ())], ids=["diagonal", "chain", "graph"])
    def test_a_coordinate_depends_on_its_own_noise_and_its_ancestors(self, parents: Parents) -> None:
        module = conditional(SkewedSpline(), parents)
        context = normal(2, 1, 2)
        jacobian = torch.autograd.functional.jacobian(
            lambda noise: module.predict(context, noise.expand(2, 1, 3))[0, 0], torch.zeros(3, dtype=torch.float64)
        )
        assert isinstance(jacobian, Tensor)
        expected = torch.eye(3) + torch.tensor([[j in p for j in range(3)] for p in parents or ((), (), ())]).float()
        assert torch.equal(jacobian.abs() > 1e-12, expected > 0)

    @pytest.mark.parametrize("parents", [(), ((), (0,), (0, 1))], ids=["diagonal", "triangular"])
    def test_log_density_is_the_change_of_variables(self, parents: Parents) -> None:
        module = conditional(SkewedSpline(), parents)
        context, y = normal(2, 1, 2), normal(3, seed=1)
        jacobian = torch.autograd.functional.jacobian(lambda v: module.abduct(context, v.expand(2, 1, 3))[0, 0], y)
        assert isinstance(jacobian, Tensor)
        u = module.abduct(context, y.expand(2, 1, 3))[0, 0]
        expected = torch.distributions.Normal(0.0, 1.0).log_prob(u).sum() + torch.linalg.slogdet(jacobian)[1]
        torch.testing.assert_close(module.log_prob(context, y.expand(2, 1, 3))[0, 0].sum(), expected)

    def test_a_held_coordinate_keeps_its_value_and_moves_its_children_alone(self) -> None:
        module = conditional(SkewedSpline(), ((), (0,), ()))
        context, noise = normal(2, 5, 2), normal(2, 5, 3, seed=1)
        free, held = module.predict(context, noise), module.predict(context, noise, {0: 2.5})
        torch.testing.assert_close(held[..., 0], torch.full_like(held[..., 0], 2.5))
        assert ((held[..., 1] - free[..., 1]).abs() > 1e-6).all()
        torch.testing.assert_close(held[..., 2], free[..., 2])

    def test_it_starts_as_the_linear_regression_of_the_rows_that_count(self) -> None:
        random = torch.Generator().manual_seed(0)
        context = torch.randn(1, 5000, 2, generator=random)
        noise = torch.randn(1, 5000, 1, generator=random)
        y = 3 + 2 * context[..., :1] - context[..., 1:] + 0.5 * noise
        y[:, 4000:] = 99.0
        module = ConditionalLaw(1, 2, 1, SkewedSpline(), (8,))
        rows = Padded({"context": context, "y": y}, torch.tensor([4000]))
        module.standardise_to(rows)
        torch.testing.assert_close(module.abduct(context, y)[:, :4000], noise[:, :4000], rtol=0, atol=0.1)

    def test_nothing_is_learned_from_held_out_rows(self) -> None:
        table = random_table(40)
        module = ConditionalLaw(1, 2, 3, Gaussian(), (8,))
        learner = LikelihoodTraining(module, [table], [0], replace(BRIEF, held_out=0.5))
        (learned,) = learner.learned
        torch.testing.assert_close(module.context.mean[0, 0], table["context"][learned].mean(0))
        assert torch.equal(learner.draw(0, torch.Generator(), 50)["rows"].unique(), learned.sort().values)
        assert torch.equal(torch.cat([learned, learner.checked[0]]).sort().values, torch.arange(40))

    def test_the_best_step_is_chosen_on_the_held_out_rows_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two tables of different lengths; which rows are held out is the learner's own word."""
        learners: list[LikelihoodTraining] = []
        monkeypatch.setattr("counterpoint.nets.likelihood.train", lambda learner, *_: learners.append(learner))
        QUICK.fit_many([Job(sample(Independent(), count, 0), seed) for seed, count in enumerate((30, 40))])
        (learner,) = learners
        before, rows = learner.score(), torch.arange(len(learner.y))
        held_out = [checked[count.bool()] for checked, count in zip(learner.checked, learner.counts, strict=True)]
        learner.y[~torch.isin(rows, torch.cat(held_out))] += 3.0
        assert torch.equal(learner.score(), before)
        for row in torch.cat(held_out).unique():
            learner.y[row] += 3.0
            changed = learner.score() != before
            assert changed.tolist() == [bool((row == own).any()) for own in held_out]
            before = learner.score()
        for k, own in enumerate(held_out):
            assert not torch.isin(learner.draw(k, generator(k), 20)["rows"], own).any()

    @torch.no_grad()
    def test_only_what_varies_with_the_context_is_priced(self) -> None:
        table = random_table(100)
        module = ConditionalLaw(1, 2, 3, SkewedSpline(), (8,))
        learner = LikelihoodTraining(module, [table], [0], BRIEF, VariationPenalty(5.0))
        context, y = table["context"][None], table["y"][None]
        weight, bias = list(module.net.parameters())[-2:]
        bias.fill_(0.5)
        price = learner.loss(context, y) + module.log_prob(context, y).sum(-1).mean(-1)
        assert price == pytest.approx(0.0, abs=0.02)
        weight.copy_(normal(*weight.shape, dtype=torch.float32))
        next(iter(module.net.parameters())).copy_(normal(1, 2, 8, dtype=torch.float32))
        price = learner.loss(context, y) + module.log_prob(context, y).sum(-1).mean(-1)
        # Seven numbers in three columns, each varying by about 1: 5/√85 · 21 · .1 · log(1 + 1/.1).
        assert 0.5 * 2.7 < price < 2 * 2.7


class TestDensitySCM:
    @pytest.mark.parametrize("recipe", [default_scm(), location_scale(), spline_flow(), quantile()])
    @pytest.mark.parametrize("order", [(), (2, 0, 3, 1)], ids=["diagonal", "triangular"])
    def test_the_factual_action_brings_the_factual_next_state_back(
        self, recipe: DensitySCM, order: tuple[int, ...]
    ) -> None:
        rows = sample(Independent(), 200, 0)
        model = replace(recipe, ensemble=2, hidden=(16,), likelihood=BRIEF, order=order).fit(rows)
        again = model.counterfactual(rows, rows.action)
        torch.testing.assert_close(again, rows.next_state, rtol=0, atol=1e-5)

    def test_a_member_fitted_beside_others_equals_one_fitted_alone(self) -> None:
        tables = [sample(Independent(), count, seed) for count, seed in ((150, 0), (200, 1))]
        together = QUICK.fit_many([Job(table, seed) for seed, table in enumerate(tables)])
        for seed, table in enumerate(tables):
            alone = QUICK.fit(table, seed)
            for name, tensor in alone.mechanism.state_dict().items():
                torch.testing.assert_close(together[seed].mechanism.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)

    def test_swapping_state_and_next_state_is_noticed(self) -> None:
        """A model fitted on (s', a, s) answers another question: its error is far above that of (s, a, s')."""
        rows, test = sample(Skewed(), 500, 0), sample(Skewed(), 500, 1)
        quick = replace(QUICK, likelihood=Likelihood(Schedule(steps=150, check_every=50), learning_rate=5e-3))
        action = Skewed().actions.sample(500, torch.Generator().manual_seed(2))
        truth = Skewed().counterfactual(test, action)
        right = quick.fit(rows).counterfactual(test, action)
        swapped = quick.fit(replace(rows, state=rows.next_state, next_state=rows.state)).counterfactual(test, action)
        assert (right - truth).square().mean() < 0.2 * (swapped - truth).square().mean()

    def test_blocks_of_rows_do_not_change_the_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = sample(Independent(), 100, 0)
        model = QUICK.fit(rows)
        whole = model.abduct(rows)
        monkeypatch.setattr("counterpoint.models.scm.density.BLOCK", 64)
        torch.testing.assert_close(model.abduct(rows), whole)

    def test_few_rows_are_fitted_briefly_whoever_is_fitted_beside_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A short log and a long one together are what each is alone; a training of one's own is left as it is."""
        careful, brief = (replace(BRIEF, schedule=Schedule(steps=steps)) for steps in (20, 10))
        monkeypatch.setattr("counterpoint.models.scm.density.CAREFUL", careful)
        monkeypatch.setattr("counterpoint.models.scm.density.BRIEF", brief)
        usual = replace(QUICK, likelihood=DefaultLikelihood(), few_rows=40)
        jobs = [Job(sample(Independent(), count, 0), seed) for seed, count in enumerate((60, 40, 41))]
        together = usual.fit_many(jobs)
        assert [model.structure.likelihood for model in together] == [careful, brief, careful]
        for job, model in zip(jobs, together, strict=True):
            (alone,) = usual.fit_many([job])
            (by_hand,) = replace(QUICK, likelihood=model.structure.likelihood, few_rows=0).fit_many([job])
            for other in (alone, by_hand):
                torch.testing.assert_close(model.abduct(job.data), other.abduct(job.data))
        assert QUICK.fit_many(jobs[1:2])[0].structure.likelihood == QUICK.likelihood

    def test_a_likelihood_that_is_given_is_used_as_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also one with the numbers that the default has for many rows; only the default is shorter for few."""
        used: list[Likelihood] = []
        monkeypatch.setattr("counterpoint.models.scm.density.fit_by_likelihood", lambda *told: used.append(told[3]))
        rows = sample(Independent(), 40, 0)
        given = Likelihood(Schedule(steps=3000, check_every=50, patience=15, rate="one-cycle"), learning_rate=5e-3)
        fitted = [recipe.fit(rows) for recipe in (DensitySCM(likelihood=given), DensitySCM(), DensitySCM(few_rows=0))]
        assert [(each.schedule.steps, each.learning_rate) for each in used] == [
            (3000, 5e-3),
            (1000, 2.5e-3),
            (3000, 5e-3),
        ]
        assert fitted[0].structure.likelihood == given
        assert location_scale().likelihood == Likelihood()

    def test_one_member_astray_does_not_carry_the_answer(self) -> None:
        answers = torch.tensor([1.0, 2.0, 3.0, 4.0, 1e6])[:, None, None]
        assert interquartile_mean(answers).item() == pytest.approx(3.0)
        assert interquartile_mean(answers[[4, 2, 0, 3, 1]]).item() == pytest.approx(3.0)
        assert interquartile_mean(answers[:3]).item() == pytest.approx(2.0)
        assert isinstance(QUICK.build(1, 2, 2), LawMechanism)

    def test_a_graph_is_answered_through_its_children_alone(self) -> None:
        x, _ = TRIANGLE_NLIN.sample(400, 0)
        (model,) = fit_graph(QUICK, [x], TRIANGLE_NLIN.parents, [0])
        answer = model.counterfactual(x, {1: 2.0})
        torch.testing.assert_close(answer[:, 0], x[:, 0], rtol=0, atol=1e-4)
        torch.testing.assert_close(answer[:, 1], torch.full((400,), 2.0))
        assert (answer[:, 2] - x[:, 2]).abs().mean() > 0.1
