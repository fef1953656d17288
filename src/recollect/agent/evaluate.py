"""How good a policy is: whole episodes from fixed seeds, with an interval.

Episodes are collected as in training, so that observations, actions and endings are what they are
there, compiled or on the host. The same seed gives the same episodes.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from recollect.checks import check_count
from recollect.collect.compiled import Episodes
from recollect.collect.host import HostCollector
from recollect.envs import AbstractEnv, EnvironmentFailure, EnvSettings, HostEnv, host
from recollect.keys import numbered, seed_keys, stream
from recollect.policies import AbstractPolicy
from recollect.runtime import use_compilation_cache
from recollect.serial import write_csv
from recollect.statistics import Estimate, bootstrap

GROUP = 16
"""Episodes that are run side by side."""
STREAM = 2
"""Number of the seeds of environments on the host; training has 0 and 1."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Episodes of one policy.

    Example:
        >>> import numpy as np
        >>> from recollect import Evaluation
        >>> found = Evaluation(np.array([1.0, 3.0]), np.array([5, 9]), seed=0, deterministic=True)
        >>> found.mean.value
        2.0
    """

    returns: np.ndarray
    """Undiscounted, of every episode."""
    lengths: np.ndarray
    """In steps."""
    seed: int
    deterministic: bool

    @property
    def mean(self) -> Estimate:
        """Mean return, and its 95 % bootstrap interval over episodes."""
        return bootstrap(lambda returns: returns.mean(1), self.returns)

    def __str__(self) -> str:
        mean = self.mean
        kind = "deterministic" if self.deterministic else "stochastic"
        return (
            f"{len(self.returns)} {kind} episodes from seed {self.seed}: return {mean.value:.2f} "
            f"(95 % interval {mean.low:.2f} to {mean.high:.2f}), median "
            f"{np.median(self.returns):.2f}, lowest {self.returns.min():.2f}, highest "
            f"{self.returns.max():.2f}, length {self.lengths.mean():.1f}"
        )

    def write(self, path: str | Path) -> None:
        """Write a row for every episode as CSV."""
        rows = zip(range(len(self.returns)), self.returns, self.lengths, strict=True)
        write_csv(Path(path), ("episode", "return", "length"), rows)


class Deterministic(AbstractPolicy):
    """A policy that takes the mode of another instead of drawing."""

    policy: AbstractPolicy

    def sample(self, key, observation):
        del key
        return self.policy.mode(observation)

    def log_prob(self, observation, action):
        return self.policy.log_prob(observation, action)

    def mode(self, observation):
        return self.policy.mode(observation)

    def entropy(self, observation):
        del observation
        return jnp.zeros(())

    def kl(self, other, observation):
        return self.policy.kl(other, observation)


def evaluate(
    policy: AbstractPolicy,
    env: Any,
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
) -> Evaluation:
    """Returns of a policy in whole episodes, always the same for the same seed.

    Args:
        policy: for example `training.policy(0)` or `agent.policy`.
        env: in any form that `train` takes.
        episodes: how many.
        seed: that first states and draws come from; no training sees these, whatever its seed.
        deterministic: take the policy's mode instead of drawing actions.

    Raises:
        ValueError: if the environment has no time limit.

    Example:
        >>> import jax
        >>> import recollect as rc
        >>> env = rc.CartPole(max_steps=50)
        >>> policy = rc.Architecture().build(jax.random.key(0), env)
        >>> found = rc.evaluate(policy, env, episodes=5)
        >>> found.returns.shape
        (5,)
    """
    check_count("episodes", episodes)
    if isinstance(env, str):
        env = EnvSettings(env)
    env = env.make() if isinstance(env, EnvSettings) else env
    env = env if isinstance(env, AbstractEnv | HostEnv) else host(env)
    use_compilation_cache()
    acting = Deterministic(policy) if deterministic else policy
    if isinstance(env, HostEnv):
        returns, lengths = _on_host(env, acting, episodes, seed)
    else:
        returns, lengths = _compiled(env, acting, episodes, seed)
    return Evaluation(returns[:episodes], lengths[:episodes], seed, deterministic)


def _compiled(env: AbstractEnv, policy: AbstractPolicy, episodes: int, seed: int):
    group = min(GROUP, episodes)
    key = stream(jax.random.key(seed), "evaluation")
    groups = range(-(-episodes // group))
    found = [_group(numbered(key, number), env, policy, group) for number in groups]
    return tuple(np.concatenate(values) for values in zip(*found, strict=True))


@eqx.filter_jit
def _group(key, env: AbstractEnv, policy: AbstractPolicy, count: int):
    _, rollout = Episodes(count)(key, env, policy, None, 0.0)
    return rollout.returns, rollout.lengths


def _on_host(env: HostEnv, policy: AbstractPolicy, episodes: int, seed: int):
    group = min(GROUP, episodes) if env.vector is None else env.vector.num_envs
    stacked = jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, policy)
    keys = jax.vmap(lambda key: stream(key, "evaluation"))(seed_keys((seed,)))
    collector = HostCollector(env, Episodes(group), (seed,), STREAM)
    found: list[np.ndarray] = []
    ongoing = None
    number = 0
    try:
        while sum(map(len, found)) < episodes:
            of_group = jax.vmap(functools.partial(numbered, number=number))(keys)
            ongoing, rollout = collector(stacked, of_group, number, ongoing)
            # By copy, not in the order of their endings: the first to end are the short ones.
            figures = np.stack([np.asarray(rollout.returns), np.asarray(rollout.lengths)], -1)
            by_copy = np.nanmax(figures.reshape(-1, group, 2), axis=0, initial=-np.inf)
            found.append(by_copy[by_copy[:, 1] > 0])  # without episodes that were left out
            number += 1
            if not len(found[-1]):
                raise EnvironmentFailure(f"{env.name}: no episode ended, all had diverged.")
    finally:
        collector.close()
    returns, lengths = np.concatenate(found).T
    return returns, lengths
