"""Values as a quadratic function of the observation, fitted to returns in closed form."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.devices import at_full_precision
from recollect.tree import where_mask

RIDGE = 1e-4
"""Penalty of the linear-quadratic fit, relative to the mean square of each feature."""
PRODUCTS_UP_TO = 16
"""Observations with at most this many features get all products of pairs, larger ones only
squares."""


@at_full_precision
def linear_values(
    observations: Float[Array, "*row feature"],
    returns: Float[Array, "*row"],
    mask: Bool[Array, "*row"],
):
    """Ridge regression of returns on 1, the observation and its products of pairs, as a function
    of observations."""
    features = where_mask(mask, _quadratic(observations))
    flat = features.reshape(-1, features.shape[-1])
    targets = where_mask(mask, returns).reshape(-1)
    gram = flat.T @ flat
    penalty = RIDGE * jnp.diagonal(gram) + jnp.finfo(gram.dtype).tiny ** 0.5
    coefficients = jax.scipy.linalg.solve(
        gram + jnp.diag(penalty), flat.T @ targets, assume_a="pos"
    )
    return lambda observations: _quadratic(observations) @ coefficients


def _quadratic(observations: Float[Array, "*row feature"]) -> Float[Array, "*row column"]:
    size = observations.shape[-1]
    each = jnp.arange(size)
    first, second = jnp.triu_indices(size) if size <= PRODUCTS_UP_TO else (each, each)
    products = observations[..., first] * observations[..., second]
    return jnp.concatenate([jnp.ones_like(observations[..., :1]), observations, products], axis=-1)
