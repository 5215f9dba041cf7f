"""The benchmark of large tables measures what it says, on small ones."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    import scale  # pyright: ignore[reportMissingImports]

    yield scale
    del sys.modules["scale"], sys.modules["counterfactual_speed"]


def test_the_scale_benchmark_measures_and_writes_its_page(scale, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(
        scale, "alone", lambda stage, rows, *more: {"figure": stage, "rows": rows, **scale.STAGES[stage](rows, *more)}
    )
    figures = {(row["figure"], row["rows"]): row for row in scale.measure(2500, 3000, "60", 1)}
    assert set(figures) == {("fit", 250), ("fit", 2500), ("imagine", 2500), ("stream", 3000)}
    assert figures["imagine", 2500]["rows_out"] == 5 * 2500
    assert figures["stream", 3000]["rows_out"] == 2 * 3000
    fitted = figures["fit", 2500]
    assert fitted["first_report"] < fitted["first_steps"] < fitted["seconds"]
    assert fitted["steps"] == 60
    page = scale.page(list(figures.values()), scale.provenance(), "command")
    assert "`command`" in page
    assert "| stream | 3000 |" in page


def test_a_measured_fit_takes_all_its_steps(scale, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of the last step alone does not say so: a fit that stops early reports its end too."""
    fitted: list[int] = []
    fit = scale.DensitySCM.fit

    def spied(self, *given, **named):
        fitted.append(self.likelihood.schedule.patience)
        return fit(self, *given, **named)

    monkeypatch.setattr(scale.DensitySCM, "fit", spied)
    scale.fit(250, "2")
    assert fitted == [0]
