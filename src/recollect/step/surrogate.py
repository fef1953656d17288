"""What a step is expected to gain: TRPO's surrogate, and PPO's clipped one."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from recollect.memory.rows import Window
from recollect.policies import AbstractPolicy


def surrogate_gain(
    window: Window, advantages: Float[Array, " newest"], new: AbstractPolicy
) -> Float[Array, ""]:
    """Σ c_i A_i (π(a_i|s_i) / π_n(a_i|s_i) − 1), where the c_i are importance weights over their
    denominator.

    Args:
        window: rows with their weights under π_n, and the share of each age.
        advantages: A of every row of the window.
        new: π.
    """
    rows = window.rows
    observations = rows.observations[: window.bound]
    log_probs = jax.vmap(new.log_prob)(observations, rows.actions[: window.bound])
    change = log_probs - rows.log_probs[: window.bound]
    return jnp.sum(window.coefficients() * advantages * jnp.expm1(change))


def clipped_surrogate(
    ratio: Float[Array, " row"],
    centre: Float[Array, " row"],
    advantages: Float[Array, " row"],
    clip: Float[Array, ""] | float,
) -> Float[Array, " row"]:
    """min(r A, clip(r, centre − ε, centre + ε) A), with r = π(a|s) / μ(a|s)."""
    return jnp.minimum(
        ratio * advantages, jnp.clip(ratio, centre - clip, centre + clip) * advantages
    )
