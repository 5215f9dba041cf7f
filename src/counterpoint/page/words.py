"""A policy in words: what sort it is, its rule where that can be read, and its groups of subjects."""

from dataclasses import dataclass

from counterpoint.data.transitions import Transitions
from counterpoint.learners.baselines.pets import PETSPolicy
from counterpoint.learners.search import SearchedPolicy
from counterpoint.page.cells import SMALLEST, hidden
from counterpoint.page.cohort import rare_levels
from counterpoint.policies.base import Policy
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.policies.q import QPolicy

KINDS: dict[type, str] = {
    PersonalPolicy: "a policy for each group of subjects, chosen by what a subject’s record says of how it responds",
    SearchedPolicy: "a rule that was searched inside the fitted model and can be read",
    PETSPolicy: "a planner, which tries sequences of actions inside a fitted model before every decision",
    QPolicy: "a network that values every action and takes the one it values highest",
}


@dataclass(frozen=True)
class Group:
    """One group of subjects and what is done for it."""

    name: str
    size: str
    rule: tuple[str, ...]


def kind_of(policy: Policy) -> str:
    """What sort of policy it is."""
    return next((said for kind, said in KINDS.items() if isinstance(policy, kind)), "a policy of another kind")


def rule_of(policy: Policy, rows: Transitions) -> tuple[str, ...]:
    """The rule line by line, rare levels of categories unnamed; empty where it cannot be said in words."""
    if not isinstance(policy, SearchedPolicy):
        return ()
    text = policy.explain()
    for place, _ in rows.schema.categories:
        column, few = rows.schema.states[place], rare_levels(rows, place)
        for i, level in enumerate(column.levels):
            if few[i]:
                text = text.replace(f"[{column.name} = {level}]", f"[{column.name} = level {i + 1}, not shown]")
    return tuple(text.splitlines())


def groups_of(policy: Policy, rows: Transitions) -> tuple[Group, ...]:
    """The groups of a personal policy and, last, everybody of whom not enough is known; none for another policy."""
    if not isinstance(policy, PersonalPolicy):
        return ()
    sizes, whole = policy.sizes(rows), len(rows.subject.unique())
    few = hidden(sizes)
    names = [f"Group {i + 1}" for i in range(len(sizes))]
    said = [
        f"fewer than {SMALLEST} subjects, or hidden because another is" if few[i] else f"{size:,} of {whole:,} subjects"
        for i, size in enumerate(sizes)
    ]
    names, said = [*names, "Everybody else"], [*said, "whoever is not known well enough yet"]
    rules = [rule_of(own, rows) for own in policy.policies if isinstance(own, Policy)]
    return tuple(Group(*each) for each in zip(names, said, rules, strict=True))
