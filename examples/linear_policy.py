"""A policy of one's own: a linear controller a = −k·s plus Gaussian noise; the gains k are learned.

    python examples/linear_policy.py

Three numbers that an engineer can read, in place of a network. Gradients, products with the Fisher
matrix and importance weights all come from `log_prob`.
"""

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

import recollect as rc


class LinearController(rc.AbstractPolicy):
    """a ~ N(−k·s, σ²): a proportional–derivative controller, if s is (position, speed)."""

    gains: jax.Array
    log_scale: jax.Array

    def sample(self, key, observation):
        return self.mode(observation) + jnp.exp(self.log_scale) * jax.random.normal(key, (1,))

    def log_prob(self, observation, action):
        return norm.logpdf(action, self.mode(observation), jnp.exp(self.log_scale)).sum()

    def mode(self, observation):
        return -(self.gains @ observation)[None]

    def entropy(self, observation):
        return self.log_scale + 0.5 * jnp.log(2 * jnp.pi * jnp.e)

    def kl(self, other, observation):
        # KL between two normal laws, in logs where scales divide.
        apart = (self.mode(observation) - other.mode(observation)).sum()
        wider = jnp.exp(2 * (self.log_scale - other.log_scale))
        further = (apart * jnp.exp(-other.log_scale)) ** 2
        return 0.5 * (wider + further - 1) - (self.log_scale - other.log_scale)


def start(key):
    """The controller before anything was learned: it does nothing but explore."""
    del key
    return LinearController(gains=jnp.zeros(2), log_scale=jnp.array(-0.7))


if __name__ == "__main__":
    from compiled_hover import Hover

    run = rc.train(Hover(), rc.RNPG(), policy=start, seeds=4, environment_steps=40_000)
    print("return at the end:", run.curves["recent_return"][:, -1].round(1))
    print("gains on height and speed:", run.policies.gains.round(2).tolist())
