"""Distributions over finitely many actions, and policies with them.

Probabilities are a softmax of the network's outputs, over choices or over a grid of numbers, or the
outputs themselves.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.checks import check_count, check_number
from recollect.policies.bounds import Bounds, checked_bounds, ends
from recollect.policies.networks import mlp, table
from recollect.policies.policy import AbstractHead, Policy
from recollect.settings import checked


class Softmax(AbstractHead):
    """π(a) ∝ exp(outputs_a), over the actions 0, 1, …

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect import Softmax
        >>> outputs = jnp.log(jnp.array([0.1, 0.7, 0.2]))
        >>> int(Softmax().mode(outputs))
        1
        >>> round(float(jnp.exp(Softmax().log_prob(outputs, jnp.array(2)))), 4)
        0.2
    """

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Int[Array, ""]:
        return _sample(key, jax.nn.softmax(outputs))

    def log_prob(self, outputs: Float[Array, " out"], action: Int[Array, ""]) -> Float[Array, ""]:
        return _pick(jax.nn.log_softmax(outputs), action)

    def mode(self, outputs: Float[Array, " out"]) -> Int[Array, ""]:
        return jnp.argmax(outputs)

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return -jnp.sum(jax.nn.softmax(outputs) * jax.nn.log_softmax(outputs))

    def kl(
        self, outputs: Float[Array, " out"], other: "Softmax", other_outputs: Float[Array, " out"]
    ) -> Float[Array, ""]:
        return jnp.sum(
            jax.nn.softmax(outputs)
            * (jax.nn.log_softmax(outputs) - jax.nn.log_softmax(other_outputs))
        )

    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["Softmax", Float[Array, "rank out"]]:
        """Rows √π_a (e_a − π): the score of each action, times the root of its probability."""
        π = jax.nn.softmax(outputs)
        return self, jnp.sqrt(π)[:, None] * (jnp.eye(π.size) - π)


class MultiSoftmax(AbstractHead):
    """Several independent choices, each a `Softmax` over its own part of the outputs."""

    counts: tuple[int, ...] = eqx.field(static=True)
    """Number of actions of each choice."""

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Int[Array, " choice"]:
        keys = jax.random.split(key, len(self.counts))
        return jnp.stack(
            [Softmax().sample(k, part) for k, part in zip(keys, self._parts(outputs), strict=True)]
        )

    def log_prob(
        self, outputs: Float[Array, " out"], action: Int[Array, " choice"]
    ) -> Float[Array, ""]:
        return jnp.array(
            [Softmax().log_prob(part, action[i]) for i, part in enumerate(self._parts(outputs))]
        ).sum()

    def mode(self, outputs: Float[Array, " out"]) -> Int[Array, " choice"]:
        return jnp.stack([Softmax().mode(part) for part in self._parts(outputs)])

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.array([Softmax().entropy(part) for part in self._parts(outputs)]).sum()

    def kl(
        self,
        outputs: Float[Array, " out"],
        other: "MultiSoftmax",
        other_outputs: Float[Array, " out"],
    ) -> Float[Array, ""]:
        pairs = zip(self._parts(outputs), other._parts(other_outputs), strict=True)
        return jnp.array([Softmax().kl(ours, Softmax(), theirs) for ours, theirs in pairs]).sum()

    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["MultiSoftmax", Float[Array, "rank out"]]:
        """The roots of all choices as blocks on the diagonal, as their scores are uncorrelated."""
        roots = [Softmax().fisher_root(part)[1] for part in self._parts(outputs)]
        return self, jax.scipy.linalg.block_diag(*roots)

    def _parts(self, outputs: Float[Array, " out"]) -> list[Float[Array, " _"]]:
        """The outputs of each choice."""
        return jnp.split(outputs, np.cumsum(self.counts)[:-1].tolist())


class GridSoftmax(AbstractHead):
    """A `Softmax` over equally spaced values, independently for each number of the action.

    The outputs are the logits of the first number's grid, then of the second's, and so on. An
    action is the vector of grid values, as the environment takes it; `log_prob` finds the index of
    each on its grid by rounding.
    """

    bounds: Bounds = eqx.field(static=True)
    """Low and high of each number; both are grid values."""
    points: int = eqx.field(static=True)
    """Number of grid values of each number."""

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Float[Array, " size"]:
        keys = jax.random.split(key, len(self.bounds))
        indices = jax.vmap(Softmax().sample)(keys, self._rows(outputs))
        return self._values(indices, outputs.dtype)

    def log_prob(
        self, outputs: Float[Array, " out"], action: Float[Array, " size"]
    ) -> Float[Array, ""]:
        low, high = ends(self.bounds, outputs.dtype)
        indices = jnp.round((action - low) / (high - low) * (self.points - 1)).astype(jnp.int32)
        return jnp.sum(jax.vmap(Softmax().log_prob)(self._rows(outputs), indices))

    def mode(self, outputs: Float[Array, " out"]) -> Float[Array, " size"]:
        return self._values(jax.vmap(Softmax().mode)(self._rows(outputs)), outputs.dtype)

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(jax.vmap(Softmax().entropy)(self._rows(outputs)))

    def kl(
        self,
        outputs: Float[Array, " out"],
        other: "GridSoftmax",
        other_outputs: Float[Array, " out"],
    ) -> Float[Array, ""]:
        of_each = jax.vmap(lambda ours, theirs: Softmax().kl(ours, Softmax(), theirs))
        return jnp.sum(of_each(self._rows(outputs), self._rows(other_outputs)))

    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["GridSoftmax", Float[Array, "rank out"]]:
        """The roots of all numbers as blocks on the diagonal, as their scores are uncorrelated."""
        _, roots = jax.vmap(Softmax().fisher_root)(self._rows(outputs))
        return self, jax.scipy.linalg.block_diag(*roots)

    def _rows(self, outputs: Float[Array, " out"]) -> Float[Array, "size points"]:
        """The logits of each number's grid."""
        return outputs.reshape(len(self.bounds), self.points)

    def _values(self, indices: Int[Array, " size"], dtype) -> Float[Array, " size"]:
        """The grid values at `indices`."""
        low, high = np.array(self.bounds).T
        grid = jnp.asarray(np.linspace(low, high, self.points, axis=1), dtype)
        return jax.vmap(_pick)(grid, indices)


class Probabilities(AbstractHead):
    """π(a) = outputs_a: the direct parameterisation, kept on the simplex by projection."""

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Int[Array, ""]:
        return _sample(key, outputs)

    def log_prob(self, outputs: Float[Array, " out"], action: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.log(_pick(outputs, action))

    def mode(self, outputs: Float[Array, " out"]) -> Int[Array, ""]:
        return jnp.argmax(outputs)

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(jax.scipy.special.entr(outputs))

    def kl(
        self,
        outputs: Float[Array, " out"],
        other: "Probabilities",
        other_outputs: Float[Array, " out"],
    ) -> Float[Array, ""]:
        return jnp.sum(jax.scipy.special.rel_entr(outputs, other_outputs))

    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["Probabilities", Float[Array, "rank out"]]:
        """∇log π(a) = e_a / π_a, so the Fisher matrix is diag(1/π) and its root diag(1/√π)."""
        return self, jnp.diag(1 / jnp.sqrt(outputs))


def _pick(values: Float[Array, " out"], action: Int[Array, ""]) -> Float[Array, ""]:
    """`values[action]`."""
    # As a masked sum: a gather of one entry for each sample would not use the vector units.
    return jnp.sum(jnp.where(jnp.arange(values.size) == action, values, 0))


def _sample(key: PRNGKeyArray, probabilities: Float[Array, " out"]) -> Int[Array, ""]:
    """Draw an index by inverting the distribution function."""
    # One uniform number for each draw, however many actions there are; `jax.random.categorical`
    # takes one for each action. It is scaled, as rounded probabilities may not add up to 1.
    ceiling = jnp.cumsum(probabilities)[:-1]
    return jnp.sum(jax.random.uniform(key) * probabilities.sum() >= ceiling, dtype=jnp.int32)


@checked
def softmax_policy(
    key: PRNGKeyArray,
    observation_size: int,
    action_count: int,
    widths: Sequence[int] = (32,),
    activation: str = "relu",
) -> Policy:
    """A softmax of an MLP, for one choice among `action_count` actions.

    The default network is the paper's, read as one hidden layer of 32 units.

    Args:
        key: for the initial weights.
        observation_size: number of inputs.
        action_count: number of actions.
        widths: sizes of the hidden layers.
        activation: `relu`, `tanh` or `silu`.

    Returns:
        A policy to start from.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import softmax_policy
        >>> policy = softmax_policy(jax.random.key(0), observation_size=4, action_count=3)
        >>> policy.outputs(jnp.ones(4)).shape
        (3,)
    """
    check_count("action_count", action_count)
    return Policy(mlp(key, observation_size, action_count, widths, activation), Softmax())


@checked
def multi_softmax_policy(
    key: PRNGKeyArray,
    observation_size: int,
    counts: Sequence[int],
    widths: Sequence[int] = (32,),
    activation: str = "relu",
) -> Policy:
    """A softmax of an MLP for each of several independent choices.

    Args:
        key: for the initial weights.
        observation_size: number of inputs.
        counts: number of actions of each choice.
        widths: sizes of the hidden layers.
        activation: `relu`, `tanh` or `silu`.

    Returns:
        A policy to start from.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import multi_softmax_policy
        >>> policy = multi_softmax_policy(jax.random.key(0), observation_size=4, counts=(2, 3))
        >>> policy.mode(jnp.ones(4)).shape
        (2,)
    """
    for count in counts:
        check_count("counts", count)
    network = mlp(key, observation_size, sum(counts), widths, activation)
    return Policy(network, MultiSoftmax(tuple(counts)))


@checked
def grid_softmax_policy(
    key: PRNGKeyArray,
    observation_size: int,
    bounds: Sequence[tuple[float, float]],
    points: int = 11,
    widths: Sequence[int] = (32,),
    activation: str = "relu",
) -> Policy:
    """A softmax of an MLP over a grid of values, for continuous actions within bounds.

    Args:
        key: for the initial weights.
        observation_size: number of inputs.
        bounds: low and high of each number of an action.
        points: number of equally spaced values from low to high, at least 2.
        widths: sizes of the hidden layers.
        activation: `relu`, `tanh` or `silu`.

    Returns:
        A policy to start from.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import grid_softmax_policy
        >>> policy = grid_softmax_policy(jax.random.key(0), 4, bounds=((-1.0, 1.0),), points=3)
        >>> policy.mode(jnp.ones(4))[0] in (-1.0, 0.0, 1.0)
        True
    """
    remedy = "give the number of grid values, both ends included, at least 2"
    check_number("points", points, low=2, remedy=remedy)
    bounds = checked_bounds(bounds, points - 1)
    network = mlp(key, observation_size, len(bounds) * points, widths, activation)
    return Policy(network, GridSoftmax(bounds, points))


@checked
def tabular_softmax_policy(observation_size: int, action_count: int) -> Policy:
    """π(a|s) ∝ exp(θ_{s,a}), uniform at first, for one-hot observations.

    Args:
        observation_size: number of states.
        action_count: number of actions.

    Returns:
        A policy to start from.

    Example:
        >>> import jax
        >>> from recollect import tabular_softmax_policy
        >>> policy = tabular_softmax_policy(5, 4)
        >>> round(float(policy.log_prob(jax.nn.one_hot(2, 5), jax.numpy.array(3))), 4)  # log ¼
        -1.3863
    """
    return Policy(table(jnp.zeros((observation_size, action_count))), Softmax())


@checked
def tabular_direct_policy(observation_size: int, action_count: int) -> Policy:
    """π(a|s) = θ_{s,a}, uniform at first, for one-hot observations and `project=Simplex()`.

    The expectation of its score over actions is not zero, so a baseline other than the value of the
    state biases the natural gradient: use exact advantages or `baseline="linear"`.

    Args:
        observation_size: number of states.
        action_count: number of actions.

    Returns:
        A policy to start from.

    Example:
        >>> import jax
        >>> from recollect import tabular_direct_policy
        >>> policy = tabular_direct_policy(5, 4)
        >>> policy.outputs(jax.nn.one_hot(2, 5)).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    uniform = jnp.full((observation_size, action_count), 1 / action_count)
    return Policy(table(uniform), Probabilities())
