"""A weight rule of one's own: the flattened ratio ω^κ, between no correction and the policy ratio.

    recollect train rnpg CartPole-v1 --weights examples/weight_rule.py:Flattened:0.5

With κ < 1 large weights shrink and small ones grow: less variance for some bias. Shimodaira (2000),
"Improving predictive inference under covariate shift by weighting the log-likelihood function".
"""

import jax.numpy as jnp

import recollect as rc


class Flattened(rc.AbstractWeightRule):
    """ω^κ, where ω = π(a|s) / μ(a|s)."""

    exponent: float = 0.5
    """κ, from 0 (all weights are 1) to 1 (the policy ratio)."""

    def weights(self, view):
        return jnp.exp(self.exponent * view.log_ratio)


if __name__ == "__main__":
    algorithm = rc.RNPG(window=10, weights=Flattened(0.5))
    run = rc.train(rc.CartPole(max_steps=200), algorithm, seeds=5, iterations=30)
    print("return at the end:", run.curves["return_mean"][:, -1].mean())
    print("largest weight:", run.curves["max_weight"].max())
