"""Acting outside the training loop: from what an environment gives to what it takes.

Observations are flattened and actions are clipped and shifted exactly as in training. One call is
one compiled program on the CPU, whatever device learns.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from recollect.devices import acting_device
from recollect.envs import AbstractEnv, HostEnv
from recollect.envs.spaces import decoder, encoder
from recollect.keys import numbered, numbered_each, stream
from recollect.policies import AbstractPolicy


class Actor:
    """A policy that acts in an environment.

    Args:
        env: the environment, whose spaces are used; it is not stepped.
        policy: what acts.
        seed: of the actions that are drawn.
    """

    def __init__(self, env: AbstractEnv | HostEnv, policy: AbstractPolicy, seed: int):
        if isinstance(env, HostEnv):
            self._space = env.observation_space
            self._decode = decoder(env.action_space)
        else:
            self._space = spaces.Box(-np.inf, np.inf, (env.observation_size,), np.float32)
            self._decode = functools.partial(_within_bounds, env)
        self._size, self._encode = encoder(self._space)
        self._cpu = acting_device()
        arrays, rest = eqx.partition(policy, eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        self._leaves = jax.device_put(leaves, self._cpu)
        self._choose = _chooser(rest, structure)
        self._key = jax.device_put(stream(jax.random.key(seed), "prediction"), self._cpu)
        self._calls = 0

    def __call__(self, observation: Any, deterministic: bool) -> Any:
        """The action for one observation, or the actions for a vector of them.

        Args:
            observation: an element of the environment's observation space, or several stacked as
                Gymnasium's vectors stack them.
            deterministic: take the policy's mode instead of drawing.

        Raises:
            ValueError: if it is neither.
        """
        single, rows = self._rows(observation)
        self._calls += 1
        with jax.default_device(self._cpu):
            actions = self._choose(self._leaves, self._key, self._calls, rows, deterministic)
        decoded = np.asarray(self._decode(np.asarray(actions)))
        return decoded[0] if single else decoded

    def _rows(self, observation: Any) -> tuple[bool, np.ndarray]:
        """Whether it is one observation, and all of them flattened."""
        count = _count(self._space, observation)
        if count is None:
            rows = np.empty((1, self._size), np.float32)
            self._encode(observation, rows[0])
            return True, rows
        if isinstance(self._space, spaces.Box):
            return False, np.asarray(observation, np.float32).reshape(count, -1)
        rows = np.empty((count, self._size), np.float32)
        for row, one in zip(
            rows, iterate(batch_space(self._space, count), observation), strict=True
        ):
            self._encode(one, row)
        return False, rows


def _count(space: Any, observation: Any) -> int | None:
    """How many observations are stacked; None if it is a single one."""
    if isinstance(space, spaces.Dict) and isinstance(observation, dict):
        name, part = next(iter(space.spaces.items()))
        if name not in observation:
            raise ValueError(f"observation has no {name!r}, which its space has.")
        return _count(part, observation[name])
    if isinstance(space, spaces.Tuple) and isinstance(observation, tuple | list) and observation:
        return _count(space.spaces[0], observation[0])
    shape = np.shape(observation)
    if shape == space.shape:
        return None
    if len(shape) and shape[1:] == space.shape:
        return shape[0]
    raise ValueError(
        f"observation has shape {shape}, but its space has {space.shape}; give one observation, or "
        "several stacked along a first axis."
    )


def _within_bounds(env: AbstractEnv, actions: np.ndarray) -> np.ndarray:
    """Actions of a compiled environment as its Gymnasium original takes them."""
    if env.actions.whole:
        return actions.astype(np.int64)
    if env.actions.bounds is None:
        return actions
    low, high = np.array(env.actions.bounds, np.float32).T
    return np.clip(actions, low, high)


@functools.lru_cache(maxsize=16)
def _chooser(rest: AbstractPolicy, structure: Any) -> Callable[..., jax.Array]:
    """The compiled function from observations in rows to actions."""

    def choose(leaves, key, call, rows, deterministic):
        policy = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
        if deterministic:
            return jax.vmap(policy.mode)(rows)
        keys = numbered_each(numbered(key, call), len(rows))
        return jax.vmap(policy.sample)(keys, jnp.asarray(rows))

    return jax.jit(choose, static_argnums=4)
