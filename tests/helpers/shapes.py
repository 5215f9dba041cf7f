"""What checks the shapes in the package's annotations while tests run; classes are the type checker's business."""

import inspect
from collections.abc import Callable
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray


def has_shape(hint: Any) -> bool:
    """Whether a jaxtyping array stands anywhere in the annotation."""
    return (inspect.isclass(hint) and issubclass(hint, AbstractArray)) or any(map(has_shape, get_args(hint)))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the arguments and results whose annotation holds a shape, at every call."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if has_shape(hint)}
    return beartype(function)
