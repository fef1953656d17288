"""The drone of hover.py as formulas, so that all of training is one compiled program.

    python examples/compiled_hover.py

A compiled environment is a pure function of (key, state, action) for one copy.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

import recollect as rc
from recollect.envs import AbstractEnv, Actions, Step

INTERVAL = 0.1
CEILING = 3.0


class HoverState(eqx.Module):
    """Height and speed, and the number of steps taken."""

    height: jax.Array
    speed: jax.Array
    time: jax.Array


class Hover(AbstractEnv):
    """Hold a height in gusts of wind."""

    max_steps: int = eqx.field(static=True, default=100)
    observation_size: int = eqx.field(static=True, default=2, init=False)
    actions: Actions = eqx.field(
        static=True, default=Actions(size=1, bounds=((-1.0, 1.0),)), init=False
    )

    def reset(self, key):
        height = jax.random.uniform(key, minval=-2.0, maxval=2.0)
        return HoverState(height, jnp.zeros(()), jnp.zeros((), jnp.int32))

    def observe(self, state):
        return jnp.stack([state.height, state.speed])

    def step(self, key, state, action):
        # The environment cuts the action; the policy's own is stored and weighed.
        thrust = jnp.clip(action[0], -1.0, 1.0)
        gust = jax.random.normal(key)
        speed = state.speed + INTERVAL * (4.0 * thrust - 0.3 * state.speed + gust)
        height = state.height + INTERVAL * speed
        after = HoverState(height, speed, state.time + 1)
        lost = jnp.abs(height) > CEILING
        return Step(
            state=after,
            observation=self.observe(after),
            reward=jnp.where(lost, 0.0, jnp.maximum(0.0, 1.0 - jnp.abs(height))),
            terminated=lost,
            truncated=after.time >= self.max_steps,
        )


if __name__ == "__main__":
    run = rc.train(Hover(), rc.RTRPO(), seeds=4, environment_steps=40_000)
    print("return at the end:", run.curves["recent_return"][:, -1].round(1))
