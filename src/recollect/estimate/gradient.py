"""The reweighed policy gradient, Equation (3)."""

from jaxtyping import Array, Float, Int

from recollect.policies.scores import AbstractScores, fold


def policy_gradient(
    scores: AbstractScores,
    coefficients: Float[Array, " row"],
    advantages: Float[Array, " row"],
    count: Int[Array, ""],
) -> Float[Array, " d"]:
    """Σ_i c_i A_i ∇log π(a_i|s_i), where the c_i are importance weights divided by their normaliser."""
    return fold(lambda scores, u: scores.pull(u), scores, coefficients * advantages, count)
