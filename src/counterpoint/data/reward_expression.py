"""A reward that is a known function of columns, parsed into a checked tree and never run as code.

    -(marker - 100)**2 / 100 - 0.1*dose
    -abs(next marker - 100) - 50*died
    where(next `heart rate` > 120, -1, 0)

A name is a state column, an action column, or an outcome, which is 1 in the row that ends with it and 0 elsewhere.
`next NAME` is a state column's value in the next row. Names with blanks or signs stand between backticks.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require

NEXT = "next "
"""Prefix of a name that stands for the value in the next row."""
LONGEST = 2000
"""Characters of an expression, at most."""
LARGEST = 1e12
"""Largest number in an expression."""
NAME = re.compile(r"(?P<next>\bnext\s+)?(?:`(?P<quoted>[^`]+)`|(?<![\w.])(?P<plain>[^\W\d]\w*))")
SIGNS = re.compile(r"[-+*/()<>=`,]|\bnext\s")
"""What tells an expression from the name of a column."""
PLACE = "_column_"
"""Prefix of the identifiers that stand for columns while the text is parsed."""
BINARY: dict[type[ast.AST], Callable[[Tensor, Tensor], Tensor]] = {
    ast.Add: torch.add,
    ast.Sub: torch.sub,
    ast.Mult: torch.mul,
    ast.Div: torch.div,
    ast.Pow: torch.pow,
    ast.Lt: torch.lt,
    ast.LtE: torch.le,
    ast.Gt: torch.gt,
    ast.GtE: torch.ge,
    ast.Eq: torch.eq,
    ast.NotEq: torch.ne,
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "log": torch.log,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
}
EXTREMES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"min": torch.minimum, "max": torch.maximum}
WORDS = {*FUNCTIONS, *EXTREMES, "where", "if", "else"}
ALLOWED = "numbers, columns, + - * / **, comparisons, abs, min, max, log, exp, sqrt and where(condition, a, b)"


@dataclass(frozen=True)
class RewardExpression:
    """A parsed expression."""

    text: str
    tree: ast.expr
    columns: tuple[str, ...]
    """The columns that it reads: NAME, or next NAME."""

    @property
    def reads_next(self) -> bool:
        """Whether it reads the next row."""
        return any(name.startswith(NEXT) for name in self.columns)

    def check_names(self, states: Sequence[str], actions: Sequence[str], outcomes: Sequence[str]) -> None:
        """Refuse names that imagined rows do not have."""
        for name in self.columns:
            bare = name.removeprefix(NEXT)
            known = states if name.startswith(NEXT) else (*states, *actions, *outcomes)
            what = "a state column" if name.startswith(NEXT) else "a column of the state, an action or an outcome"
            require(bare in known, f"the reward reads '{name}', and '{bare}' is not {what}; name one, or add it there")
            require(
                name.startswith(NEXT) or not (bare in states and bare in actions),
                f"the reward reads '{bare}', a state and an action column; rename one",
            )

    def evaluate(
        self,
        names: tuple[Sequence[str], Sequence[str], Sequence[str]],
        state: Float[Tensor, "*n s"],
        action: Float[Tensor, "*n a"],
        next_state: Float[Tensor, "*n s"],
        outcome: Float[Tensor, "*n k"],
    ) -> Float[Tensor, "*n"]:
        """Evaluate on steps.

        Args:
            names: Names of the state columns, of the action columns, and of the outcomes.
            state: State of every step.
            action: Action of every step.
            next_state: Next state of every step; not read where the expression reads no next value.
            outcome: 1 for the outcome that ends the step, else 0.
        """
        states, actions, outcomes = names
        values: dict[str, Tensor] = {}
        for name in self.columns:
            bare = name.removeprefix(NEXT)
            if name.startswith(NEXT):
                values[name] = next_state[..., states.index(bare)]
            elif bare in states:
                values[name] = state[..., states.index(bare)]
            elif bare in actions:
                values[name] = action[..., actions.index(bare)]
            else:
                values[name] = outcome[..., outcomes.index(bare)]
        like = values[self.columns[0]]
        return self._of(self.tree, values, like).expand_as(like)

    def _of(self, node: ast.expr, values: Mapping[str, Tensor], like: Tensor) -> Tensor:
        if isinstance(node, ast.Constant):
            return like.new_tensor(float(node.value))  # pyright: ignore[reportArgumentType]
        if isinstance(node, ast.Name):
            return values[self.columns[int(node.id.removeprefix(PLACE))]]
        if isinstance(node, ast.UnaryOp):
            value = self._of(node.operand, values, like)
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp):
            return BINARY[type(node.op)](self._of(node.left, values, like), self._of(node.right, values, like))
        if isinstance(node, ast.Compare):
            return self._compared(node, values, like)
        if isinstance(node, ast.IfExp):
            condition, yes, no = (self._of(part, values, like) for part in (node.test, node.body, node.orelse))
            return torch.where(condition != 0, yes, no)
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        parts = [self._of(argument, values, like) for argument in node.args]
        if node.func.id in FUNCTIONS:
            return FUNCTIONS[node.func.id](parts[0])
        if node.func.id == "where":
            return torch.where(parts[0] != 0, parts[1], parts[2])
        result = parts[0]
        for part in parts[1:]:
            result = EXTREMES[node.func.id](result, part)
        return result

    def _compared(self, node: ast.Compare, values: Mapping[str, Tensor], like: Tensor) -> Tensor:
        """1 where every comparison of a chain holds, else 0."""
        parts = [self._of(part, values, like) for part in (node.left, *node.comparators)]
        holds = torch.ones_like(like, dtype=torch.bool)
        for operator, left, right in zip(node.ops, parts[:-1], parts[1:], strict=True):
            holds = holds & BINARY[type(operator)](left, right)
        return holds.to(like)


def is_expression(text: str) -> bool:
    """Return whether a text that is no column's name is meant as an expression."""
    return bool(SIGNS.search(text))


@lru_cache(maxsize=64)
def parse_reward(text: str) -> RewardExpression:
    """Parse an expression; refuse everything but numbers, columns and the listed operations."""
    require(len(text) <= LONGEST, f"the reward has {len(text)} characters; write it in at most {LONGEST}")
    require(PLACE not in text, f"the reward reads a column with '{PLACE}' in its name; rename it")
    columns: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        if match["plain"] in WORDS and not match["next"]:
            return match[0]
        name = f"{NEXT if match['next'] else ''}{match['quoted'] or match['plain']}"
        if name not in columns:
            columns.append(name)
        return f"{PLACE}{columns.index(name)}"

    try:
        tree = ast.parse(NAME.sub(placeholder, text).strip(), mode="eval").body
        _check(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        raise CounterpointError(f"the reward '{text}' is neither a column nor an expression of {ALLOWED}") from None
    require(bool(columns), f"the reward '{text}' reads no column; name one")
    return RewardExpression(text, tree, tuple(columns))


def _check(node: ast.expr) -> None:
    """Raise ValueError at the first node that is not allowed."""
    parts: Sequence[ast.expr] = ()
    allowed = False
    if isinstance(node, ast.Constant):
        number = type(node.value) in (int, float)
        allowed = number and math.isfinite(node.value) and abs(node.value) <= LARGEST  # pyright: ignore[reportArgumentType, reportOperatorIssue]
    elif isinstance(node, ast.Name):
        allowed = node.id.startswith(PLACE)
    elif isinstance(node, ast.UnaryOp):
        allowed, parts = isinstance(node.op, ast.USub | ast.UAdd), (node.operand,)
    elif isinstance(node, ast.BinOp):
        allowed, parts = type(node.op) in BINARY, (node.left, node.right)
    elif isinstance(node, ast.Compare):
        allowed, parts = all(type(op) in BINARY for op in node.ops), (node.left, *node.comparators)
    elif isinstance(node, ast.IfExp):
        allowed, parts = True, (node.test, node.body, node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        counts = {"where": (3, 3), **dict.fromkeys(FUNCTIONS, (1, 1)), **dict.fromkeys(EXTREMES, (2, LONGEST))}
        least, most = counts.get(node.func.id, (1, 0))
        allowed, parts = least <= len(node.args) <= most, node.args
    if not allowed:
        raise ValueError(type(node).__name__)
    for part in parts:
        _check(part)
