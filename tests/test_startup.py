"""The package and its command line start without the libraries that they do not use yet."""

import subprocess
import sys
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro

import counterpoint as cp
from counterpoint.cli import mirror
from counterpoint.cli.main import COMMANDS
from counterpoint.core.artifacts import FORMAT, Artifact
from counterpoint.registry import Registry
from helpers.recipes import DENSITY, ROWS

HEAVY = ("torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "pyarrow", "gymnasium", "jinja2", "zuko")
RECIPES = {
    "models.scm.density": "DensitySCM",
    "models.scm.random_effects": "RandomEffects",
    "models.scm.bicogan": "ConditionalBiCoGAN",
    "learners.ctrl_g": "LEARNER",
    "learners.search": "Search",
    "learners.baselines.bcq": "BCQ",
    "learners.baselines.pets": "PETS",
    "learners.baselines.steve": "STEVE",
    "learners.ctrl_p": "CTRLp",
    "models.dynamics.outcome": "Outcome",
    "simulation.augmentation": "Augmenter",
    "tasks.cartpole": "CartPole",
    "sources.mimic.cohort": "SepsisCohort",
    "sources.mimic.published": "PublishedCohort",
}
"""Recipes that the command line reads from their source."""


def imported(*arguments: str) -> set[str]:
    """Return the heavy libraries that a fresh Python process imports."""
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, timeout=100)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "counterpoint" in modules, done.stderr
    return modules & set(HEAVY)


@pytest.mark.parametrize("arguments", [
    ("-c", "import counterpoint"),
    ("-m", "counterpoint", "--help"),
    ("-m", "counterpoint", "chek", "table.csv"),
    ("-m", "counterpoint", "fit", "--heldout", "3"),
    ("-m", "counterpoint", "train", "--method", "search", "--help"),
    ("-m", "counterpoint", "mimic", "--help"),
])  # fmt: skip
def test_nothing_heavy_is_imported_before_it_is_used(arguments: tuple[str, ...]) -> None:
    assert imported(*arguments) == set()


def test_the_names_of_the_package_import_no_library_of_one_task() -> None:
    """All names need torch and numpy; scikit-learn, pandas and the others are imported where they are used."""
    names = "import counterpoint as cp; [getattr(cp, name) for name in cp.__all__]"
    assert imported("-c", names) & {"sklearn", "scipy", "pandas", "matplotlib", "pyarrow", "gymnasium"} == set()


def same(left: Any, right: Any) -> bool:
    """Whether a mirror has the fields and defaults of a recipe, whatever the depth."""
    if not is_dataclass(left):
        return left == right
    names = [field.name for field in fields(left)]
    return (
        type(left).__name__ == type(right).__name__
        and names == [field.name for field in fields(right)]
        and all(same(getattr(left, name), getattr(right, name)) for name in names)
    )


@pytest.mark.parametrize("module", RECIPES)
def test_a_mirror_has_the_fields_and_defaults_of_its_recipe(module: str) -> None:
    name, path = RECIPES[module], f"counterpoint.{module}"
    mirrored, real = mirror.value(path, name), getattr(import_module(path), name)
    mirrored, real = (value() if isinstance(value, type) else value for value in (mirrored, real))
    assert same(mirrored, real)
    assert mirror.build(mirrored) == real
    assert type(mirror.build(mirrored)) is type(real)


NEW = '''
from dataclasses import dataclass
from typing import ClassVar

def helper(): ...

@dataclass(frozen=True)
class New:
    """A recipe."""

    command: ClassVar = ("new", "a few words")
    size: int = 2

@dataclass(frozen=True)
class Unoffered:
    size: int = 2
'''


def test_an_exported_class_that_says_so_is_a_command_with_its_fields_as_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "counterpoint" / "models"
    folder.mkdir(parents=True)
    (folder / "fresh.py").write_text(NEW)
    exported = [f"from counterpoint.models.fresh import {name} as {name}" for name in ("New", "Unoffered", "helper")]
    (folder / "__init__.pyi").write_text("\n".join(exported))
    monkeypatch.setattr(mirror, "SOURCES", tmp_path)
    offered = mirror.commands("models")
    assert offered == {"new": ("counterpoint.models.fresh", "New", "a few words")}
    assert tyro.cli(mirror.choice(offered), args=["--size", "3"]).size == 3


@pytest.mark.parametrize("subpackage", ["learners", "models", "ope", "tasks"])
def test_what_the_command_line_offers_is_what_the_classes_say(subpackage: str) -> None:
    package = getattr(cp, subpackage)
    kinds = [kind for kind in map(package.__getattr__, package.__all__) if "command" in getattr(kind, "__dict__", {})]
    assert kinds
    assert mirror.commands(subpackage) == {
        kind.command[0]: (kind.__module__, kind.__name__, kind.command[1]) for kind in kinds
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_the_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from counterpoint.cli.main import main

    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"usage: counterpoint {command}" in capsys.readouterr().out


def help_of(method: str, capsys: pytest.CaptureFixture[str]) -> str:
    from counterpoint.cli.main import main

    with pytest.raises(SystemExit):
        main(["train", "--method", method, "--help"])
    return capsys.readouterr().out


def test_help_shows_the_options_of_the_method_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    search, bcq = help_of("search", capsys), help_of("bcq", capsys)
    assert all(flag in search for flag in ("--objective", "--support-price", "--rule", "--rounds", "--starts"))
    assert not any(flag in search for flag in ("--hidden", "--tau", "--threshold", "--groups"))
    assert all(flag in bcq for flag in ("--threshold", "--logit-penalty", "--hidden", "--tau"))
    assert bcq.index("--threshold") < bcq.index("--hidden"), "the method's own options come first"
    assert "--objective" not in bcq


def test_every_name_of_the_registry_and_of_the_package_can_be_imported() -> None:
    registry = Registry()
    assert all(registry[name].__name__ == name for name in registry)
    for module in (cp, cp.data, cp.learners, cp.models, cp.ope, cp.policies, cp.simulation, cp.tasks):
        assert all(hasattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = cp.Nothing


def test_load_returns_the_kind_that_is_asked_for(tmp_path: Path) -> None:
    model = DENSITY.fit(ROWS, seed=7)
    model.save(tmp_path)
    assert isinstance(cp.load(tmp_path), Artifact)
    loaded = cp.load(tmp_path, cp.models.StructuralCausalModel)
    assert torch.equal(loaded.counterfactual(ROWS, ROWS.action), model.counterfactual(ROWS, ROWS.action))
    with pytest.raises(cp.CounterpointError, match="not a policy"):
        cp.load(tmp_path, cp.Policy)


def test_an_artifact_of_another_version_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    DENSITY.fit(ROWS, seed=7).save(tmp_path)
    recipe = tmp_path / "recipe.json"
    recipe.write_text(recipe.read_text().replace(FORMAT, "counterpoint/4"))
    with pytest.raises(cp.CounterpointError) as refusal:
        cp.load(tmp_path)
    assert "counterpoint/4" in str(refusal.value)
    assert "make it again with counterpoint fit" in str(refusal.value)
