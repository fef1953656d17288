"""A finite MDP whose best policy lies inside Θ, as Theorem 2 asks: a switched corridor.

A softmax table has no such optimum: its maximum lies at infinity, and adding a constant to a
state's logits changes nothing. Here four states share d = 2 parameters, so that the best policy is
a compromise between states that want different actions. It is stochastic and isolated:
θ̄ = (−0.163, 0.953), where the curvature of η is negative in every direction.
"""

import itertools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from recollect.envs import Tabular
from recollect.policies import Policy, Softmax

LENGTH = 4
"""States, in a row."""


class SharedPreference(eqx.Module):
    """Logits (0, θ₀ + θ₁x) of two actions at position x, from 1 in state 0 to −1 in the last."""

    weights: Float[Array, "2"]

    def __call__(self, observation: Float[Array, " state"]) -> Float[Array, "2"]:
        position = observation @ jnp.linspace(1, -1, observation.size)
        logit = self.weights[0] + self.weights[1] * position
        return jnp.stack([jnp.zeros_like(logit), logit])


def corridor_policy(first: float = 0.0, second: float = 0.0) -> Policy:
    """π(1|s) = σ(θ₀ + θ₁x), two parameters for all states; zeros give the uniform policy.

    >>> corridor_policy().network.weights.tolist()
    [0.0, 0.0]
    """
    weights = jnp.array([first, second], jnp.result_type(float))
    return Policy(SharedPreference(weights), Softmax())


def switched_corridor() -> Tabular:
    """A walk from state 0 to the goal behind state 3 and back to 0, γ = 0.9.

    Action 1 goes ahead with probability 0.9, else back; in states 1 and 3 action 0 does so.
    Reaching the goal pays 1. After Sutton and Barto (2018), example 13.1.
    """
    ahead = [1, 2, 3, 0]
    back = [0, 0, 1, 2]
    transitions = np.zeros((LENGTH, 2, LENGTH))
    rewards = np.zeros((LENGTH, 2))
    for state, action in itertools.product(range(LENGTH), range(2)):
        forward = 0.9 if action != state % 2 else 0.1
        transitions[state, action, ahead[state]] += forward
        transitions[state, action, back[state]] += 1 - forward
        rewards[state, action] = forward * (state == LENGTH - 1)
    return Tabular(transitions, rewards, np.eye(LENGTH)[0], discount=0.9)
