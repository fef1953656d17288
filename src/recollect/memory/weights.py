"""Importance weights: how likely the current policy is to have produced an old transition.

Everything stays in logs until the last line of `Weights.__call__`, the only exponential.
"""

from typing import Literal, get_args

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.checks import check_name, check_number
from recollect.tree import where_mask

Ratio = Literal["policy", "occupancy"]


class Weights(eqx.Module):
    """From log-ratio to weight."""

    ratio: Ratio = eqx.field(static=True, default="policy")
    """`policy`: π_n(a|s) / π_m(a|s), the paper's practical ω̂ (section 3.3). `occupancy`: d^{π_n}(s, a) / d^{π_m}(s, a),
    Equation (4), where the environment knows it."""
    truncate: float = float("inf")
    """Largest weight allowed."""
    self_normalise: bool = eqx.field(static=True, default=False)
    """Divide by the sum of the weights instead of the number of transitions: a little bias for less variance."""

    def __check_init__(self):
        check_name("ratio", self.ratio, get_args(Ratio))
        check_number(
            "truncate",
            self.truncate,
            low=0,
            open_low=True,
            infinite=True,
            remedy="give the largest weight allowed, above 0",
        )

    def __call__(
        self, log_ratio: Float[Array, "*row"], mask: Bool[Array, "*row"]
    ) -> Float[Array, "*row"]:
        """ω = min(exp(log_ratio), truncate), zero in padding."""
        log_ratio = where_mask(mask, log_ratio)
        return where_mask(mask, jnp.exp(jnp.minimum(log_ratio, jnp.log(self.truncate))))

    def normaliser(
        self, weights: Float[Array, " row"], importance: Float[Array, " row"]
    ) -> Float[Array, ""]:
        """What the weighted sum is divided by; `importance` is 1 for a transition that counts fully, 0 for padding."""
        total = jnp.sum(weights * importance if self.self_normalise else importance)
        return jnp.maximum(total, jnp.finfo(total.dtype).tiny)


def effective_sample_size(weights: Float[Array, "*row sample"]) -> Float[Array, "*row"]:
    """(Σω)² / Σω²: how many unweighted samples the weighted ones are worth; 0 where there are none."""
    # Scaled by the largest weight first, so that squares of large weights cannot overflow.
    weights = weights / jnp.maximum(weights.max(-1, keepdims=True), jnp.finfo(weights.dtype).tiny)
    square = jnp.sum(weights**2, -1)
    return jnp.where(square > 0, jnp.sum(weights, -1) ** 2 / jnp.where(square > 0, square, 1), 0.0)
