"""Types of tensors by shape; `*n` is any number of leading axes, the same for all arguments of a call."""

from jaxtyping import Bool, Float
from torch import Tensor

State = Float[Tensor, "*n s"]
Action = Float[Tensor, "*n a"]
Noise = Float[Tensor, "*n u"]
Reward = Float[Tensor, "*n"]
Flag = Bool[Tensor, "*n"]
Theta = Float[Tensor, "... t"]
"""A subject factor for every row, or one for all rows."""
