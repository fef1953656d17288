"""Gathering a batch with a policy: whole episodes, a fixed number of steps, or independent draws.

Every draw has a key of its own, from (copy, what it is for, step), so a repeated iteration repeats
itself and no draw depends on how many copies run beside it.

Whole episodes are padded to `max_steps`. The scan always runs that long: many seeds step as one
vector, so the steps after an early end cost far less than the bookkeeping to skip them would.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from recollect.batch import Batch
from recollect.checks import check_count
from recollect.collect.rollout import AbstractCollector, Rollout, with_log_probs
from recollect.envs.base import AbstractEnv, AbstractOracle, Step
from recollect.keys import numbered, numbered_each, stream
from recollect.policies import AbstractPolicy


class Episodes(AbstractCollector):
    """Whole episodes, each cut at the environment's `max_steps`: the paper's B trajectories.

    Example:
        >>> import jax
        >>> import recollect as rc
        >>> env, key = rc.CartPole(max_steps=50), jax.random.key(0)
        >>> policy = rc.Architecture().build(key, env)
        >>> _, rollout = rc.Episodes(3)(key, env, policy, None, 0.99)
        >>> rollout.batch.rewards.shape  # padded to the longest that an episode can be
        (3, 50)
        >>> bool(rollout.environment_steps == rollout.batch.mask.sum())
        True
    """

    episodes: int = eqx.field(static=True, default=4)

    def __check_init__(self):
        check_count("episodes", self.episodes)

    def __call__(self, key, env, policy, carry, discount):
        del discount

        def run(key):
            act = _actor(key, env, policy)

            def body(carry, time):
                state, alive = carry
                transition, step = act(time, state, time, alive)
                return (step.state, alive & ~_ended(step)), transition

            start = (env.reset(stream(key, "reset")), jnp.array(True))
            return lax.scan(body, start, jnp.arange(env.max_steps))[1]

        batch = with_log_probs(policy, jax.vmap(run)(numbered_each(key, self.episodes)))
        returns = jnp.sum(batch.rewards, axis=1, where=batch.mask)
        lengths = batch.mask.sum(1)
        return carry, Rollout(
            batch=batch,
            returns=returns,
            lengths=lengths.astype(returns.dtype),
            environment_steps=lengths.sum(),
        )


class Steps(AbstractCollector):
    """A fixed number of steps in each of several copies; episodes go on in the next batch.

    Example:
        >>> import recollect as rc
        >>> collector = rc.preset("rtrpo", "Hopper-v5").collector
        >>> collector.copies, collector.steps
        (8, 128)
    """

    copies: int = eqx.field(static=True, default=4)
    steps: int = eqx.field(static=True, default=128)

    def __check_init__(self):
        check_count("copies", self.copies)
        check_count("steps", self.steps)

    def init(self, key, env):
        """For each copy its state, the time since its episode began, and the return so far."""
        states = jax.vmap(env.reset)(numbered_each(key, self.copies))
        return states, jnp.zeros(self.copies, jnp.int32), jnp.zeros(self.copies)

    def __call__(self, key, env, policy, carry, discount):
        del discount

        def run(key, state, time, total):
            act = _actor(key, env, policy)
            key_resets = stream(key, "reset")

            def body(carry, index):
                state, time, total = carry
                transition, step = act(index, state, time, jnp.array(True))
                ended = _ended(step)
                total = total + step.reward
                start = env.reset(numbered(key_resets, index))
                fresh = (start, jnp.zeros((), jnp.int32), jnp.zeros(()))
                going = (step.state, time + 1, total)
                carry = jax.tree.map(lambda a, b: jnp.where(ended, a, b), fresh, going)
                length = (time + 1).astype(total.dtype)
                episode = jax.tree.map(lambda x: jnp.where(ended, x, jnp.nan), (total, length))
                return carry, (transition, *episode)

            return lax.scan(body, (state, time, total), jnp.arange(self.steps))

        carry, (batch, returns, lengths) = jax.vmap(run)(numbered_each(key, self.copies), *carry)
        return carry, Rollout(
            batch=with_log_probs(policy, batch),
            returns=returns.T.ravel(),
            lengths=lengths.T.ravel(),
            environment_steps=jnp.array(self.copies * self.steps),
        )


class Draws(AbstractCollector):
    """Independent draws (s_T, a_T) with P(T = t) = γ^t (1 − γ), samples of the occupancy measure
    d^π.

    Section 2.3 of the paper. Each restarts the environment and walks T steps without a time limit.
    A walk that terminates before T stands for an absorbing state in which no action matters: it is
    masked out, and counted as `absorbed`.

    Example:
        >>> import jax
        >>> import recollect as rc
        >>> env, key = rc.make("LQC"), jax.random.key(0)
        >>> policy = rc.ShiftPolicy(jax.numpy.array(2.0))
        >>> _, rollout = rc.Draws(5)(key, env, policy, None, env.discount)
        >>> rollout.batch.rewards.shape  # episodes of one step
        (5, 1)
    """

    samples: int = eqx.field(static=True, default=5)

    def __check_init__(self):
        check_count("samples", self.samples)

    def __call__(self, key, env, policy, carry, discount):
        def run(key):
            uniform = jax.random.uniform(stream(key, "horizon"), minval=jnp.finfo(jnp.float32).tiny)
            horizon = jnp.floor(jnp.log(uniform) / jnp.log(discount)).astype(jnp.int32)
            act = _actor(key, env, policy)

            def walk(carry):
                state, time, _ = carry
                _, step = act(time, state, time, jnp.array(True))
                return step.state, time + 1, ~step.terminated

            first = env.reset(stream(key, "reset"))
            start = (first, jnp.zeros((), jnp.int32), jnp.array(True))
            state, time, alive = lax.while_loop(
                lambda carry: (carry[1] < horizon) & carry[2], walk, start
            )
            return act(time, state, time, alive)[0], time

        transitions, times = jax.vmap(run)(numbered_each(key, self.samples))
        rollout = _drawn(policy, transitions, discount, times + transitions.mask)
        batch = dataclasses.replace(rollout.batch, absorbed=~rollout.batch.mask)
        return carry, dataclasses.replace(rollout, batch=batch)


class Occupancy(AbstractCollector):
    """Independent draws from d^π itself, where the environment knows it: `Draws` without the
    walk."""

    samples: int = eqx.field(static=True, default=5)

    def __check_init__(self):
        check_count("samples", self.samples)

    def __call__(self, key, env, policy, carry, discount):
        if not isinstance(env, AbstractOracle):
            raise ValueError(
                f"{type(env).__name__} does not know its occupancy measure; use LQC or Tabular, or "
                "collect with Draws."
            )
        states = env.draw_states(stream(key, "state"), policy, self.samples)
        now = jnp.zeros((), jnp.int32)
        alive = jnp.array(True)
        act = _actor(key, env, policy)
        draw = lambda number, state: act(number, state, now, alive)[0]
        transitions = jax.vmap(draw)(jnp.arange(self.samples), states)
        return carry, _drawn(policy, transitions, discount, jnp.ones(self.samples, jnp.int32))


def _drawn(
    policy: AbstractPolicy, transitions: Batch, discount, steps: Int[Array, " sample"]
) -> Rollout:
    """Independent transitions, each after so many steps, as a batch of episodes with one step
    each."""
    batch = with_log_probs(policy, jax.tree.map(lambda x: x[:, None], transitions))
    worth = jnp.where(batch.mask, batch.rewards, 0)[:, 0] / (1 - discount)
    return Rollout(
        batch=batch,
        returns=worth,
        lengths=steps.astype(worth.dtype),
        environment_steps=steps.sum(),
    )


def _ended(step: Step) -> Bool[Array, ""]:
    return step.terminated | step.truncated


def _actor(
    key: PRNGKeyArray, env: AbstractEnv, policy: AbstractPolicy
) -> Callable[..., tuple[Batch, Step]]:
    """The function that makes one transition of one copy: a batch without axes, and its step.

    It takes the number of the draw, the state, the time in the episode, and whether it counts.
    """
    key_actions = stream(key, "action")
    key_steps = stream(key, "step")

    def act(number, state, time, alive):
        observation = env.observe(state)
        action = policy.sample(numbered(key_actions, number), observation)
        step = env.step(numbered(key_steps, number), state, action)
        transition = Batch(
            observations=observation,
            actions=action,
            log_probs=jnp.zeros(()),
            rewards=step.reward,
            next_observations=step.observation,
            terminated=step.terminated,
            truncated=step.truncated,
            times=time,
            mask=alive,
        )
        return transition, step

    return act
