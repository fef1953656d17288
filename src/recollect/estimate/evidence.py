"""What a rule of shares may look at: what the stored batches say under the current policy.

Sizes, effective sample sizes and ratios cost a pass over the rows. The gradients by age, with the
newest batch in two halves, cost together what the gradient of the whole window costs, and only a
rule that asks for them pays that.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.estimate.gradient import gradient_by_age, gradient_by_half
from recollect.estimate.metric import AbstractMetric, Euclidean
from recollect.memory.rows import Rows, weight_by_age
from recollect.tree import where_mask


class Gradients(eqx.Module):
    """The gradient from every age alone, that of the newest batch in two halves.

    The halves are made of different copies (or episodes), which are independent of one another, so
    that their difference tells how much noise there is in the newest gradient.

    Example:
        Two halves that differ by (2, 0), and one older batch.

        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> gradients = rc.Gradients(
        ...     halves=jnp.array([[2.0, 0.0], [0.0, 0.0]]),
        ...     half_shares=jnp.array([0.5, 0.5]),
        ...     older=jnp.array([[0.0, 1.0]]),
        ... )
        >>> gradients.by_age.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        >>> float(gradients.noise(gradients.products()))  # of the mean of two halves, 2² / 4
        1.0
    """

    halves: Float[Array, "2 d"]
    """g_a and g_b."""
    half_shares: Float[Array, " 2"]
    """How much of the newest batch each half is: g₀ = w_a g_a + w_b g_b."""
    older: Float[Array, "older d"]
    """g₁, g₂, …, by age."""
    metric: AbstractMetric = Euclidean()
    """In which the algorithm's step measures gradients."""

    @property
    def by_age(self) -> Float[Array, "age d"]:
        """g₀, g₁, …."""
        return jnp.concatenate([self.half_shares[None] @ self.halves, self.older])

    def products(self) -> Float[Array, "part part"]:
        """The inner products of g_a, g_b, g₁, g₂, … in the metric.

        Any question about combinations of gradients is a quadratic form of this small matrix.
        """
        return self.metric.products(jnp.concatenate([self.halves, self.older]))

    def parts(self, by_age: Float[Array, "*n age"]) -> Float[Array, "*n part"]:
        """Coefficients of g₀, g₁, … as coefficients of g_a, g_b, g₁, …."""
        halves = by_age[..., :1] * self.half_shares
        return jnp.concatenate([halves, by_age[..., 1:]], axis=-1)

    def noise(self, products: Float[Array, "part part"]) -> Float[Array, ""]:
        """v₀ = w_a w_b ‖g_a − g_b‖², an unbiased estimate of E‖g₀ − g‖², where g is its mean."""
        apart = products[0, 0] - 2 * products[0, 1] + products[1, 1]
        return jnp.prod(self.half_shares) * jnp.maximum(apart, 0)


def no_gradients() -> Gradients:
    """What there is to ask for where no advantages are known."""
    raise ValueError("there are no gradients to look at; give the evidence some.")


class Evidence(eqx.Module):
    """What is known of the newest K ages, newest first.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> evidence = rc.Evidence.fresh(jnp.array([4.0, 2.0]))
        >>> (evidence.effective_sample_size / evidence.transitions).tolist()
        [1.0, 1.0]
    """

    rows: Float[Array, " age"]
    """S_j, the weight of the transitions of each age: their number, if states are not
    discounted."""
    transitions: Float[Array, " age"]
    """N_j, their number."""
    effective_sample_size: Float[Array, " age"]
    """ESS_j, at most N_j; 0 where a weight is not finite."""
    ratio_deviation: Float[Array, " age"]
    """Mean |ρ − 1| for one dimension of the action, with ρ = π(a|s) / μ(a|s)."""
    clip_fraction: Callable[[float], Float[Array, " age"]]
    """Share of the transitions of each age that PPO's clip around 1 would take out of the gradient
    before the first step, for a given ε."""
    gradients: Callable[[], Gradients] = no_gradients
    """The gradient from each age alone; all of them cost as much as one over all rows."""
    persistence: float = 1.0
    """How much longer a bias lasts than noise, with the algorithm's way to step."""

    @classmethod
    def fresh(
        cls, rows: Float[Array, " age"], gradients: Callable[[], Gradients] = no_gradients
    ) -> "Evidence":
        """What there would be to say if the current policy had collected every batch.

        Args:
            rows: of every age.
            gradients: from each age.
        """
        zeros = jnp.zeros_like(rows)
        return cls(
            rows=rows,
            transitions=rows,
            effective_sample_size=rows,
            ratio_deviation=zeros,
            clip_fraction=lambda clip: zeros,
            gradients=gradients,
        )


def evidence_of(
    rows: Rows,
    advantages: Float[Array, " newest"],
    metric: Callable[[], AbstractMetric],
    persistence: float = 1.0,
) -> Evidence:
    """The evidence of the ages that have advantages.

    Args:
        rows: all that is stored.
        advantages: A of the rows of the newest ages.
        metric: in which the algorithm's step measures gradients.
        persistence: how much longer a bias lasts than noise, with its way to step.
    """
    ages = len(advantages) // rows.packing.per_batch
    counts = rows.packing.counts[:ages]
    log_ratio = rows.log_ratio[: len(advantages)]
    mean = lambda values: rows.packing.unpack(values).sum((1, 2)) / jnp.maximum(counts, 1)

    def clip_fraction(clip: float) -> Float[Array, " age"]:
        out = clipped(jnp.exp(log_ratio), jnp.ones_like(log_ratio), advantages, clip)
        return mean((out & rows.view.mask[: len(advantages)]).astype(log_ratio.dtype))

    def gradients() -> Gradients:
        halves, half_shares = gradient_by_half(rows, advantages)
        older = gradient_by_age(rows, advantages, youngest=1)
        return Gradients(halves, half_shares, older, metric())

    return Evidence(
        rows=weight_by_age(rows)[:ages],
        transitions=counts.astype(log_ratio.dtype),
        effective_sample_size=rows.effective_sample_size()[1][:ages],
        ratio_deviation=mean(_deviation(rows)[: len(advantages)]),
        clip_fraction=clip_fraction,
        gradients=gradients,
        persistence=persistence,
    )


def clipped(
    ratio: Float[Array, " row"],
    centre: Float[Array, " row"],
    advantages: Float[Array, " row"],
    clip: Float[Array, ""] | float,
) -> Bool[Array, " row"]:
    """Where PPO's surrogate does not depend on r: beyond the clip, in the direction the advantage
    asks for."""
    return jnp.where(advantages > 0, ratio > centre + clip, ratio < centre - clip)


def _deviation(rows: Rows) -> Float[Array, " row"]:
    """|ρ − 1| for one dimension of the action; zero in padding.

    The stored log-probability is that of the whole action. The logarithms of the ratios of D
    independent dimensions add up to √D times what one of them has.
    """
    dimensions = max(rows.actions[0].size, 1)
    return where_mask(rows.view.mask, jnp.abs(jnp.expm1(rows.log_ratio / dimensions**0.5)))
