"""Distributions over finitely many actions: softmax of the outputs, on choices or on a grid of numbers, or the outputs themselves."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.checks import check_count
from recollect.policies.bounds import Bounds, checked_bounds, ends
from recollect.policies.networks import mlp, table
from recollect.policies.policy import AbstractHead, Policy


class Softmax(AbstractHead):
    """π(a) ∝ exp(outputs_a)."""

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
        """Rows √π_a (e_a − π): the scores of all actions, each weighed by its probability."""
        π = jax.nn.softmax(outputs)
        return self, jnp.sqrt(π)[:, None] * (jnp.eye(π.size) - π)


class MultiSoftmax(AbstractHead):
    """Several choices at once, each a `Softmax` of its own over its share of the outputs."""

    counts: tuple[int, ...] = eqx.field(static=True)

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
        """The roots of all choices as blocks on the diagonal: scores of independent draws are uncorrelated."""
        return self, jax.scipy.linalg.block_diag(
            *[Softmax().fisher_root(part)[1] for part in self._parts(outputs)]
        )

    def _parts(self, outputs: Float[Array, " out"]) -> list[Float[Array, " _"]]:
        return jnp.split(outputs, np.cumsum(self.counts)[:-1].tolist())


class GridSoftmax(AbstractHead):
    """A `Softmax` over `points` equally spaced numbers from low to high, independently for each number of the action.

    The outputs are the preferences of the first number's grid, then of the second's, and so on. An action is the vector
    of grid values itself, as the environment takes it; rounding finds its place on the grid again.
    """

    bounds: Bounds = eqx.field(static=True)
    points: int = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Float[Array, " size"]:
        keys = jax.random.split(key, len(self.bounds))
        return self._values(jax.vmap(Softmax().sample)(keys, self._rows(outputs)), outputs.dtype)

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
        return jnp.sum(
            jax.vmap(lambda ours, theirs: Softmax().kl(ours, Softmax(), theirs))(
                self._rows(outputs), self._rows(other_outputs)
            )
        )

    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["GridSoftmax", Float[Array, "rank out"]]:
        """The roots of all numbers as blocks on the diagonal: scores of independent draws are uncorrelated."""
        _, roots = jax.vmap(Softmax().fisher_root)(self._rows(outputs))
        return self, jax.scipy.linalg.block_diag(*roots)

    def _rows(self, outputs: Float[Array, " out"]) -> Float[Array, "size points"]:
        return outputs.reshape(len(self.bounds), self.points)

    def _values(self, indices: Int[Array, " size"], dtype) -> Float[Array, " size"]:
        low, high = np.array(self.bounds).T
        return jax.vmap(_pick)(
            jnp.asarray(np.linspace(low, high, self.points, axis=1), dtype), indices
        )


class Probabilities(AbstractHead):
    """π(a) = outputs_a: the direct parameterisation, to be kept on the simplex by projection."""

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
        """∇log π(a) = e_a / π_a, so the Fisher matrix is diag(1/π)."""
        return self, jnp.diag(1 / jnp.sqrt(outputs))


def _pick(values: Float[Array, " out"], action: Int[Array, ""]) -> Float[Array, ""]:
    # A sum against the one-hot action; gathering one entry for each sample would leave the vector units idle.
    return jnp.sum(jnp.where(jnp.arange(values.size) == action, values, 0))


def _sample(key: PRNGKeyArray, probabilities: Float[Array, " out"]) -> Int[Array, ""]:
    # Inverse distribution function: one uniform draw an action, however many actions there are.
    ceiling = jnp.cumsum(probabilities)[:-1]
    return jnp.sum(jax.random.uniform(key) * probabilities.sum() >= ceiling, dtype=jnp.int32)


def softmax_policy(
    key: PRNGKeyArray,
    observation_size: int,
    action_count: int,
    widths: Sequence[int] = (32,),
    activation: str = "relu",
) -> Policy:
    """Softmax over an MLP; the default is the paper's network read as one hidden layer of 32."""
    check_count("action_count", action_count)
    return Policy(mlp(key, observation_size, action_count, widths, activation), Softmax())


def multi_softmax_policy(
    key: PRNGKeyArray,
    observation_size: int,
    counts: Sequence[int],
    widths: Sequence[int] = (32,),
    activation: str = "relu",
) -> Policy:
    """For several choices at once: an MLP and, for each number in `counts`, a softmax over that many."""
    for count in counts:
        check_count("counts", count)
    return Policy(
        mlp(key, observation_size, sum(counts), widths, activation), MultiSoftmax(tuple(counts))
    )


def grid_softmax_policy(
    key: PRNGKeyArray,
    observation_size: int,
    bounds: Sequence[tuple[float, float]],
    points: int = 11,
    widths: Sequence[int] = (32,),
    activation: str = "relu",
) -> Policy:
    """For continuous actions: an MLP and, for each pair of low and high in `bounds`, a softmax over `points` values between them."""
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise ValueError(
            f"points={points!r} is not a whole number of at least 2; give the number of grid values, both ends included."
        )
    bounds = checked_bounds(bounds, points - 1)
    return Policy(
        mlp(key, observation_size, len(bounds) * points, widths, activation),
        GridSoftmax(bounds, points),
    )


def tabular_softmax_policy(observation_size: int, action_count: int) -> Policy:
    """Softmax over a table of preferences θ_{s,a}, uniform at first."""
    return Policy(table(jnp.zeros((observation_size, action_count))), Softmax())


def tabular_direct_policy(observation_size: int, action_count: int) -> Policy:
    """π(a|s) = θ_{s,a}, uniform at first, for `project=Simplex()`.

    Its scores do not average to zero over actions, so a baseline other than the value of the state
    tilts the natural gradient: take exact advantages or `baseline="linear"`.
    """
    return Policy(
        table(jnp.full((observation_size, action_count), 1 / action_count)), Probabilities()
    )
