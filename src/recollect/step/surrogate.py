"""PPO's clipped surrogate, and which transitions its clip takes out of the gradient."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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


def clipped(
    ratio: Float[Array, " row"],
    centre: Float[Array, " row"],
    advantages: Float[Array, " row"],
    clip: Float[Array, ""] | float,
) -> Bool[Array, " row"]:
    """Where the surrogate no longer depends on r: already beyond the clip, in the direction the
    advantage asks for."""
    return jnp.where(advantages > 0, ratio > centre + clip, ratio < centre - clip)
