"""The control of a comparison of reuse: no reuse, but as many gradient steps.

PPO sweeps over the whole window, and so does a critic with `fit="window"`. A window of K therefore
takes up to K times the minibatch steps of a window of 1, and a comparison of the two mixes what
reuse does with what more steps do. The control takes the steps without the reuse. PG, NPG and TRPO
move the policy once an update whatever the window; only their critic can take more steps.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from recollect.algorithms.base import AbstractAlgorithm
from recollect.algorithms.natural import AbstractNatural
from recollect.algorithms.ppo import PPO
from recollect.checks import check_count


class NewestRepeated(AbstractAlgorithm):
    """RPPO whose window holds copies of the newest batch, min(n, K) of them in iteration n.

    It sweeps over as many batches as RPPO, in minibatches of the same size, also while the window
    fills, and so does its critic: on batches of equal length an update takes exactly as many
    steps. K times the epochs would take more, as batches that do not fill a minibatch share it.
    """

    algorithm: PPO = PPO()
    """What takes the steps. The fields above repeat its own: `train` looks there."""

    @classmethod
    def of(cls, algorithm: PPO) -> "NewestRepeated":
        """The control of RPPO with its settings."""
        if algorithm.critic_window is not None:
            # The copies are as many as the window has; more epochs make up for the rest.
            epochs = algorithm.critic.epochs * algorithm.critic_window / algorithm.window
            critic = dataclasses.replace(algorithm.critic, epochs=max(1, round(epochs)))
            algorithm = dataclasses.replace(algorithm, critic_window=None, critic=critic)
        names = [field.name for field in dataclasses.fields(AbstractAlgorithm)]
        return cls(algorithm=algorithm, **{name: getattr(algorithm, name) for name in names})

    def init(self, policy, batch, key):
        return self.algorithm.init(policy, batch, key)

    def update(self, state, rollout, key):
        push = lambda _, history: history.push(rollout.batch, state.policy, self.weights)[0]
        # The update itself pushes the batch once more: one copy fewer is needed here.
        copies = lax.fori_loop(0, self.window - 1, push, state.history)
        repeated = copies.without(jnp.arange(self.window) >= state.iteration)
        return self.algorithm.update(dataclasses.replace(state, history=repeated), rollout, key)


def without_reuse(algorithm: AbstractAlgorithm) -> AbstractAlgorithm:
    """The same settings with a window of 1, in Fisher matrix and critic as well."""
    windows: dict[str, Any] = dict(window=1, critic_window=None)
    if isinstance(algorithm, AbstractNatural):
        windows |= dict(fisher_window=1)
    return dataclasses.replace(algorithm, **windows)


def equal_steps_control(
    algorithm: AbstractAlgorithm,
    transitions: int | None = None,
) -> AbstractAlgorithm:
    """No reuse, but as many gradient steps.

    For PPO that is `NewestRepeated`. For the others it is a window of 1 whose critic is fitted for
    more epochs, if it is fitted to the window. With N transitions in a batch and minibatches of m,
    a sweep over K batches has ⌈KN/m⌉ steps, over one ⌈N/m⌉: the epochs are multiplied by the
    ratio, rounded. Until the window is full, that critic takes more steps than the other.

    Args:
        algorithm: what reuses a window of K batches.
        transitions: N; if it is not known, the critic's epochs are multiplied by K.

    Returns:
        The control; equal to `without_reuse(algorithm)` where no steps grow with the window.

    Example:
        >>> from recollect.algorithms import RTRPO
        >>> control = equal_steps_control(RTRPO(window=4), transitions=512)
        >>> control.window, control.critic.epochs
        (1, 40)
    """
    if transitions is not None:
        check_count("transitions", transitions)
    if isinstance(algorithm, PPO):
        return NewestRepeated.of(algorithm)
    control = without_reuse(algorithm)
    if not algorithm.advantages.needs_critic or algorithm.critic.fit == "batch":
        return control
    critic = algorithm.critic
    window = algorithm.critic_window or algorithm.window
    epochs = window * critic.epochs
    if transitions is not None:
        of_window = _minibatches(window * transitions, critic.minibatch)
        of_batch = _minibatches(transitions, critic.minibatch)
        epochs = round(critic.epochs * of_window / of_batch)
    return dataclasses.replace(control, critic=dataclasses.replace(critic, epochs=epochs))


def planned_steps(algorithm: PPO | NewestRepeated, transitions: np.ndarray) -> np.ndarray:
    """Gradient steps of every update of PPO, from the transitions of every batch.

    Args:
        algorithm: PPO, RPPO or the control.
        transitions: of every batch, iterations last.

    Returns:
        What `Info.gradient_steps` says, if no update stops early.

    Example:
        >>> from recollect.algorithms import RPPO
        >>> planned_steps(RPPO(window=2, epochs=10, minibatch=64), np.array([64, 64, 128]))
        array([10, 20, 30])
    """
    sizes = np.asarray(transitions, np.int64)
    settings = algorithm.algorithm if isinstance(algorithm, NewestRepeated) else algorithm
    if settings.shares.steps_of_newest:
        swept = sizes
    elif isinstance(algorithm, NewestRepeated):
        swept = sizes * np.minimum(np.arange(sizes.shape[-1]) + 1, algorithm.window)
    else:
        until_now = np.cumsum(sizes, axis=-1)
        forgotten = np.zeros_like(until_now)
        forgotten[..., algorithm.window :] = until_now[..., : -algorithm.window]
        swept = until_now - forgotten
    return settings.epochs * _minibatches(swept, settings.minibatch)


def _minibatches(transitions: Any, size: int) -> Any:
    """In how many minibatches a sweep deals out so many transitions; see `minibatches.sweep`."""
    return -(-transitions // size)
