"""A column that is a function of the others has no noise, and must not outweigh those that have."""

import torch

import counterpoint as cp
from counterpoint.models.scm.effects.changes import EquationForm
from counterpoint.models.scm.effects.choosing import choose_factors
from counterpoint.models.scm.effects.linear import fit
from counterpoint.models.scm.effects.prepared import EffectsTable, prepare
from counterpoint.tasks import tumour

PATIENTS = 60


def table() -> tuple[EffectsTable, tumour.TumourResponse]:
    """Records of patients; the drug's concentration is a function of state and action."""
    response = tumour.population(PATIENTS, 100)
    task = cp.Tumour(response=response)
    rows = cp.simulate(task, cp.random_policy(task), PATIENTS, 30, 100)
    return EffectsTable(torch.cat([rows.state, rows.action], 1), rows.state, rows.next_state, rows.subject), response


def test_who_responds_is_found_beside_a_column_without_noise() -> None:
    rows, response = table()
    for combined in (False, True):
        layout = EquationForm(("difference", "difference"), (), (), combined=combined)
        assert choose_factors(rows, layout, 4, 0) >= 2
        ready = prepare(rows, layout, 2)
        theta, _ = fit(ready.sums, 2).posterior(ready.sums)
        line = torch.cat([torch.ones_like(theta[:, :1]), theta], 1)
        for value in (response.radio.double(), response.growth.double()):
            rest = value - line @ torch.linalg.lstsq(line, value[:, None]).solution[:, 0]
            assert rest.var() < 0.1 * value.var()


def test_its_equation_is_exact_and_no_factor_bends_it() -> None:
    rows, _ = table()
    ready = prepare(rows, EquationForm(("difference", "difference"), (), ()), 2)
    found = ready.effects(fit(ready.sums, 2))
    units = ready.rows.units
    slope = found.mean[1:, 1].float() * units.change[1] / units.x[1]
    torch.testing.assert_close(slope, torch.tensor([0.0, -0.5, 5.0, 0.0]), atol=2e-3, rtol=0)
    assert float(found.effect[:, 1].abs().max()) < 1e-3


def test_a_column_that_never_changes_is_no_obstacle() -> None:
    rows, _ = table()
    still = torch.zeros(len(rows.state), 1)
    wide = EffectsTable(torch.cat([rows.inputs, still], 1), rows.state, rows.after, rows.subject)
    ready = prepare(wide, EquationForm(("difference", "difference"), (), ()), 2)
    assert bool(fit(ready.sums, 2).effect.isfinite().all())
