"""A weight rule of one's own: the power mean ω / (λω + 1 − λ), bounded by 1/λ.

    recollect train rnpg CartPole-v1 --weights examples/weight_rule.py:PowerMean:0.2

It lies between the policy ratio (λ = 0) and no correction at all (λ = 1), as the density of the
current policy over a mixture of the current one, with the share λ, and of the one that acted.
"""

import jax.numpy as jnp

import recollect as rc


class PowerMean(rc.AbstractWeightRule):
    """ω / (λω + 1 − λ), where ω = π(a|s) / μ(a|s)."""

    mix: float = 0.1
    """λ, above 0 and at most 1."""

    def weights(self, view):
        # In logs, as ω itself may overflow.
        mixture = jnp.logaddexp(jnp.log(self.mix) + view.log_ratio, jnp.log1p(-self.mix))
        return jnp.exp(view.log_ratio - mixture)


if __name__ == "__main__":
    algorithm = rc.RNPG(window=10, weights=PowerMean(0.2))
    run = rc.train(rc.CartPole(max_steps=200), algorithm, seeds=5, iterations=30)
    print("return at the end:", run.curves["return_mean"][:, -1].mean())
    print("largest weight:", run.curves["max_weight"].max())
