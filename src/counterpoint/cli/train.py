"""`counterpoint train`: a policy from real and imagined rows."""

import json
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import tyro

from counterpoint.cli.console import Saving, say, watching
from counterpoint.cli.mirror import commands, value
from counterpoint.cli.search_flags import SearchFlags
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import Positive

if TYPE_CHECKING:
    from counterpoint.learners.base import PolicyLearner
    from counterpoint.learners.ctrl_g import LEARNER
    from counterpoint.learners.d3qn import D3QN
    from counterpoint.nets.training import Monitor
    from counterpoint.policies.base import Policy, Verdict
    from counterpoint.run import Run
else:
    LEARNER = value("counterpoint.learners.ctrl_g", "LEARNER")
    D3QN = type(LEARNER)

OFFERED = commands("learners")
"""Module, class and description of the learners that have a name on the command line, by that name."""
if TYPE_CHECKING:
    Method = str
else:
    Method = Literal[
        "ctrl-g", "search", "ctrl-p", "ctrl-p-d3qn", "ctrl-g-rollouts", "ctrl-g-bicogan", "base-d", "base-s", "base-m",
        "d3qn", "pilco", *OFFERED,
    ]  # fmt: skip
OWN_TABLE, SIMULATED = "near-practice", "ctrl-g"
"""The methods where none is named: for a table that was logged, and for one that a simulator of the package made."""
NO_MODEL = "It was learned without the run's model, so no check of a model covers it."
PERSONAL = ("ctrl-p", "ctrl-p-d3qn")
PARENTS = {
    **{name: ["scm", "augmented"] for name in ("ctrl-g", "ctrl-g-rollouts")},
    **{name: ["scm"] for name in ("search", "near-practice", *PERSONAL)},
}
"""The parts of the run that the methods with its own SCM learn from; every other method fits what it needs itself."""
SEARCHED = ("search", "pilco", "ctrl-p")
SETTINGS = {
    **{method: (module, name) for method, (module, name, _) in OFFERED.items()},
    **dict.fromkeys(PERSONAL, ("counterpoint.learners.ctrl_p", "CTRLp")),
}
"""Module and class of the methods whose own numbers and switches are options too."""


def learns_q(method: str) -> bool:
    """Whether a method learns a Q-network, whose settings are options then."""
    if method in OFFERED:
        return "learner" in {f.name for f in fields(value(*SETTINGS[method]))}
    return method not in SEARCHED


@dataclass(frozen=True)
class MethodFlags:
    """Settings of the method itself."""

    def applied(self, learner: "PolicyLearner") -> "PolicyLearner":
        """Return the learner with the settings that differ from their defaults."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if not changed:
            return learner
        return replace(learner, **changed)  # pyright: ignore[reportArgumentType]  Every learner is a dataclass.


def method_flags(method: str) -> type[MethodFlags]:
    """Return the options of a method's own class: its fields that are numbers, switches or names."""
    if method not in SETTINGS:
        return MethodFlags
    recipe = value(*SETTINGS[method])
    plain = [(f.name, f.type, f.default) for f in fields(recipe) if f.default is not MISSING and _is_plain(f.type)]
    flags = make_dataclass(recipe.__name__, plain, bases=(MethodFlags,), frozen=True)
    flags.__doc__ = recipe.__doc__
    return flags


def _is_plain(kind: Any) -> bool:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind in (bool, int, float, str) or get_origin(kind) is Literal


def named_methods(learner: "D3QN") -> "dict[str, PolicyLearner]":
    """Return every method with its defaults, by its name on the command line."""
    from counterpoint.learners import methods

    return methods.named_methods(learner)


@dataclass(frozen=True)
class Train:
    """Learn a policy from the run's training subjects. Writes policy/ into the run folder.

    `train --method METHOD --help` shows the options of a method.
    """

    run: Path
    """Run folder."""
    method: Method | None = None
    """near-practice, the default for your own table: a readable tilt of what the clinicians do, searched inside the
    SCM; how far it goes from practice is chosen on held-out subjects. ctrl-g, the default for simulated data: the
    paper's method; it uses the run's SCM and imagined rows (fit, augment), ctrl-g-rollouts its own episodes too;
    search needs no imagined rows: it optimises a readable rule inside the SCM. ctrl-p searches such a rule for every
    group of subjects (fit with scm:random-effects), ctrl-p-d3qn learns a Q-network for each. practice does what the
    clinicians do: the median dose or the most probable action in a state. The others are baselines."""
    groups: Positive | None = None
    """Number of groups of subjects, for ctrl-p and ctrl-p-d3qn; chosen from the data where none is given."""
    method_settings: tyro.conf.OmitArgPrefixes[MethodFlags] = field(default_factory=MethodFlags)
    search: tyro.conf.OmitArgPrefixes[SearchFlags] = SearchFlags()
    learner: tyro.conf.OmitArgPrefixes[D3QN] = LEARNER
    """Settings of Q-learning, for every method that learns a Q-network."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    saving: tyro.conf.OmitArgPrefixes[Saving] = Saving()

    @classmethod
    def with_options_of(cls, options: list[str]) -> "type[Train]":
        """Return this command with the options of the method that is named in `options`; help shows no others."""
        method = _method_in(options)
        flags = method_flags(method)
        absent = set()
        if {"-h", "--help"} & set(options):
            absent |= set() if method in PERSONAL else {"groups"}
            absent |= set() if method in SEARCHED else {"search"}
            absent |= set() if learns_q(method) else {"learner"}
        if {f.name for f in fields(flags)} & {f.name for f in fields(SearchFlags)}:
            absent.add("search")
        changed: list[Any] = [("method_settings", tyro.conf.OmitArgPrefixes[flags], field(default_factory=flags))]
        for f in fields(cls):
            if f.name in absent:
                changed.append((f.name, tyro.conf.SuppressFixed[tyro.conf.Fixed[f.type]], f.default))
        command = make_dataclass(cls.__name__, changed, bases=(cls,), frozen=True)
        command.__doc__ = cls.__doc__
        return command

    def execute(self) -> None:
        from counterpoint.cli.trained import trained_lines
        from counterpoint.learners.ctrl_g import LEARNER as DEFAULT
        from counterpoint.learners.ctrl_p import check_personal
        from counterpoint.run import Run

        method = self.named
        require(
            learns_q(method) or self.learner in (DEFAULT, LEARNER),
            f"{method} learns no Q-network; leave the flags of the Q-network away, or name another --method",
        )
        require(
            method in SEARCHED or self.search == SearchFlags(),
            f"{method} searches no rule; leave --support-price, --objective, --rule, --rounds, --restarts,"
            " --starts and --horizon away",
        )
        require(self.groups is None or method in PERSONAL, f"{method} knows no groups; leave --groups away")
        require(
            self.groups is None or self.groups > 0,
            f"--groups {self.groups} is no number of groups; give 1 or more, or leave it away to have it chosen",
        )
        run, parents = Run(self.run), ["data", "split", "task", *PARENTS.get(method, [])]
        for part in parents:
            run.fingerprint(part)
        if method in PERSONAL:
            check_personal(run.scm)
        verdict = self._verdict(run)
        with watching(self.run, self.saving) as monitor:
            policy = self._learn(run, monitor)
        run.keep("policy", policy.with_verdict(verdict).save, parents)
        say(f"{method} learned on {len(run.training)} logged rows, policy in {run.path('policy')}")
        model = run.scm if "scm" in parents else None
        # A policy that is conditioned on factors needs the model that infers these.
        simulator = run.scm if model is None and run.has("scm") and not policy.factor_width else model
        for line in trained_lines(policy, run.training, model, self.seed, simulator, run.task):
            say(line)
        say(verdict.brief)

    @property
    def named(self) -> str:
        """The method that was named, or the default for the run's data."""
        return self.method or default_method(self.run)

    def _verdict(self, run: "Run") -> "Verdict":
        """Return the verdict on the model behind the policy; a model that was not checked is checked now."""
        from counterpoint.cli.check_scm import examine
        from counterpoint.policies.base import Verdict

        if self.named not in PARENTS:
            return Verdict("not checked", (NO_MODEL,))
        try:
            if not run.has("check"):
                examine(run)
        except CounterpointError as error:
            return Verdict("not checked", (f"The model could not be checked: {error}.",))
        return run.check_verdict

    def _learn(self, run: "Run", monitor: "Monitor") -> "Policy":
        from counterpoint.core.artifacts import device_of
        from counterpoint.data.jobs import Job
        from counterpoint.learners.ctrl_g import CTRLg
        from counterpoint.learners.ctrl_p import CTRLp
        from counterpoint.learners.near_practice import NearPractice
        from counterpoint.learners.search import Search

        learner = self._searching(self.method_settings.applied(named_methods(self.learner)[self.named]), run)
        stage = monitor.stage("train")
        if self.named not in PARENTS:
            return learner.fit(run.training, run.task, self.seed, stage, self.device)
        model, rows = run.scm, run.augmented if isinstance(learner, CTRLg) else run.training
        if isinstance(learner, CTRLp):
            learner, job = learner.within(model, rows, self.groups), Job(rows, self.seed)
        elif isinstance(learner, NearPractice):
            job = Job(rows, self.seed)
        else:
            job = Job(rows, self.seed, model.subjects(rows))
        model_on_device = model.to(device_of(self.device))
        if isinstance(learner, CTRLg):
            ctrl_g = replace(learner, model=model.recipe)
            return ctrl_g.learn([job], [model_on_device], run.task, stage)[0].selected
        assert isinstance(learner, Search | CTRLp | NearPractice)
        learner.check([job], run.task)
        learner = replace(learner, model=model.recipe) if isinstance(learner, Search | NearPractice) else learner
        return learner.with_models([job], [model_on_device], run.task, stage)[0].selected

    def _searching(self, learner: "PolicyLearner", run: "Run") -> "PolicyLearner":
        """Return the method with the settings of its search, where it searches."""
        from counterpoint.learners.ctrl_p import CTRLp
        from counterpoint.learners.search import Search

        if isinstance(learner, CTRLp) and isinstance(learner.policy, Search):
            return replace(learner, policy=self.search.applied(learner.policy, run.training, run.task))
        return self.search.applied(learner, run.training, run.task) if isinstance(learner, Search) else learner


def default_method(folder: Path) -> str:
    """Return the method for the data of a run where none is named; a run that cannot be read is refused later."""
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        simulated = bool(record["parts"]["task"]["simulator"])
    except (OSError, ValueError, KeyError, TypeError):
        simulated = False
    return SIMULATED if simulated else OWN_TABLE


def _method_in(options: list[str]) -> str:
    """Return the method that a command line names, before it is parsed; the default for its run where there is none."""
    name = _option_in(options, "--method")
    return name if name in get_args(Method) else default_method(Path(_option_in(options, "--run")))


def _option_in(options: list[str], option: str) -> str:
    """Return the word that follows an option, or "" where the option is not given."""
    for word, following in pairwise([*options, ""]):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return ""
