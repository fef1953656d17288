"""The score matrix J, with one column ∇log π(a|s) for each transition, as a linear operator.

The gradient is J u and the Fisher matrix J C Jᵀ for vectors u and diagonal matrices C of weights,
so two products are all that most solvers need: `push` (Jᵀv, the derivative of log-probabilities
along v) and `pull` (J u).

For a network of affine layers, the part of a column that belongs to one layer is the outer product
of the layer's input x and the derivative δ that back-propagation computes at its output. Storing
(x, δ) takes O(N·width) memory instead of the O(N·d) of J, and a product takes 2Nd operations and no
new pass through the network. Any other policy is differentiated again in each product.

"Row" means a row of the data, that is, one transition; it is a column of J. Rows lie along the last
axis here. On CPUs with vector units that made products twice as fast as with rows first, because
small problems have fewer features than a vector has lanes.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from recollect.policies import MLP, AbstractHead, AbstractPolicy, Policy
from recollect.policies.networks import ACTIVATIONS
from recollect.tree import flatten


class AbstractScores(eqx.Module):
    """J as a linear operator on flat parameter vectors, in the order of `flatten`."""

    @property
    def rank(self) -> int:
        """Number of scores of each state; they are neighbouring rows."""
        return 1

    @abc.abstractmethod
    def push(self, vector: Float[Array, " d"]) -> Float[Array, " row"]:
        """Jᵀ v, the derivative of every log π(a|s) along `vector`."""

    @abc.abstractmethod
    def pull(self, coefficients: Float[Array, " row"]) -> Float[Array, " d"]:
        """J u, the sum of the scores weighted by `coefficients`."""

    @abc.abstractmethod
    def columns(self) -> Float[Array, "d row"]:
        """J itself."""

    @abc.abstractmethod
    def gram(self) -> Float[Array, "row row"]:
        """Jᵀ J, the inner products of all pairs of scores."""

    @abc.abstractmethod
    def squared_norms(self) -> Float[Array, " row"]:
        """‖∇log π(a|s)‖² of every row, or ones where that would cost as much as J."""

    @abc.abstractmethod
    def states(self, start: Shaped[Array, ""] | int, size: int) -> "AbstractScores":
        """The scores of `size` states from `start` on."""

    @abc.abstractmethod
    def take(self, indices: Int[Array, " sample"]) -> "AbstractScores":
        """The scores of the rows `indices`."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """(d, number of rows)."""


class LayerScores(AbstractScores):
    """Scores of a network of affine layers, one for each transition.

    Parameters are ordered by layer, each with its weight before its bias, and the head's come last.
    """

    inputs: list[Float[Array, "_ row"]]
    """x: the input of every layer."""
    deltas: list[Float[Array, "_ row"]]
    """δ: the derivative of log π(a|s) by the output of every layer, before its activation."""
    head: Float[Array, "m row"]
    """The derivative of log π(a|s) by the head's own parameters."""
    biased: tuple[bool, ...] = eqx.field(static=True)
    """Whether each layer has a bias."""

    @property
    def shape(self) -> tuple[int, int]:
        weights = sum((x.shape[0] + bias) * δ.shape[0] for x, δ, bias in self._layers())
        return weights + self.head.shape[0], self.head.shape[1]

    def _layers(self):
        return zip(self.inputs, self.deltas, self.biased, strict=True)

    def push(self, vector: Float[Array, " d"]) -> Float[Array, " row"]:
        total = jnp.zeros(self.shape[1], vector.dtype)
        at = 0
        for x, δ, bias in self._layers():
            outs, ins = δ.shape[0], x.shape[0]
            matrix = vector[at : at + outs * ins].reshape(outs, ins)
            at += outs * ins
            # Both are δᵀ M x; the one with the smaller intermediate product is taken.
            total = total + jnp.sum((matrix @ x) * δ if outs < ins else (matrix.T @ δ) * x, 0)
            if bias:
                total = total + vector[at : at + outs] @ δ
                at += outs
        return total + vector[at:] @ self.head

    def pull(self, coefficients: Float[Array, " row"]) -> Float[Array, " d"]:
        parts = []
        for x, δ, bias in self._layers():
            # Both are δ diag(u) xᵀ; the smaller of the two factors is scaled.
            matrix = (
                (δ * coefficients) @ x.T if δ.shape[0] < x.shape[0] else δ @ (x * coefficients).T
            )
            parts.append(matrix.ravel())
            if bias:
                parts.append(δ @ coefficients)
        return jnp.concatenate([*parts, self.head @ coefficients])

    def columns(self) -> Float[Array, "d row"]:
        parts = []
        for x, δ, bias in self._layers():
            parts.append((δ[:, None] * x[None]).reshape(-1, x.shape[1]))
            if bias:
                parts.append(δ)
        return jnp.concatenate([*parts, self.head])

    def gram(self) -> Float[Array, "row row"]:
        layers = sum((x.T @ x + bias) * (δ.T @ δ) for x, δ, bias in self._layers())
        return layers + self.head.T @ self.head

    def squared_norms(self) -> Float[Array, " row"]:
        layers = sum((jnp.sum(x**2, 0) + bias) * jnp.sum(δ**2, 0) for x, δ, bias in self._layers())
        return layers + jnp.sum(self.head**2, 0)

    def states(self, start: Shaped[Array, ""] | int, size: int) -> "LayerScores":
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size, axis=1), self)

    def take(self, indices: Int[Array, " sample"]) -> "LayerScores":
        return jax.tree.map(lambda x: x[:, indices], self)


class SharedScores(AbstractScores):
    """Scores of a network of affine layers, `rank` of each state.

    The scores of a state differ in their deltas and share their inputs, so that a product computes
    each layer once for each state, whatever the rank. The fields are those of `LayerScores`, with
    states first: the rank makes up for few features.
    """

    inputs: list[Float[Array, "state _"]]
    deltas: list[Float[Array, "state rank _"]]
    head: Float[Array, "state rank m"]
    biased: tuple[bool, ...] = eqx.field(static=True)

    @property
    def rank(self) -> int:
        return self.head.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        weights = sum((x.shape[1] + bias) * δ.shape[2] for x, δ, bias in self._layers())
        return weights + self.head.shape[2], len(self.head) * self.rank

    def _layers(self):
        return zip(self.inputs, self.deltas, self.biased, strict=True)

    def push(self, vector: Float[Array, " d"]) -> Float[Array, " row"]:
        total = jnp.zeros(self.head.shape[:2], vector.dtype)
        at = 0
        for x, δ, bias in self._layers():
            outs, ins = δ.shape[2], x.shape[1]
            # The derivative of the layer's output along `vector`, for fixed inputs.
            tangent = x @ vector[at : at + outs * ins].reshape(outs, ins).T
            at += outs * ins
            if bias:
                tangent = tangent + vector[at : at + outs]
                at += outs
            total = total + jnp.einsum("so,sro->sr", tangent, δ)
        return (total + self.head @ vector[at:]).ravel()

    def pull(self, coefficients: Float[Array, " row"]) -> Float[Array, " d"]:
        u = coefficients.reshape(self.head.shape[:2])
        parts = []
        for x, δ, bias in self._layers():
            weighted = jnp.einsum("sr,sro->so", u, δ)
            parts.append((weighted.T @ x).ravel())
            if bias:
                parts.append(weighted.sum(0))
        return jnp.concatenate([*parts, jnp.einsum("sr,srm->m", u, self.head)])

    def columns(self) -> Float[Array, "d row"]:
        return self._unshared().columns()

    def gram(self) -> Float[Array, "row row"]:
        return self._unshared().gram()

    def squared_norms(self) -> Float[Array, " row"]:
        square = lambda x: jnp.sum(x**2, -1)
        layers = sum((square(x) + bias)[:, None] * square(δ) for x, δ, bias in self._layers())
        return (layers + square(self.head)).ravel()

    def states(self, start: Shaped[Array, ""] | int, size: int) -> "SharedScores":
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), self)

    def take(self, indices: Int[Array, " sample"]) -> LayerScores:
        state, number = jnp.divmod(indices, self.rank)
        select = lambda x: x[state, number].T
        return LayerScores(
            inputs=[x[state].T for x in self.inputs],
            deltas=[select(δ) for δ in self.deltas],
            head=select(self.head),
            biased=self.biased,
        )

    def _unshared(self) -> LayerScores:
        """The same scores with a copy of the inputs for each row."""
        rows_last = lambda x: x.reshape(self.shape[1], -1).T
        return LayerScores(
            inputs=[jnp.repeat(x.T, self.rank, axis=1) for x in self.inputs],
            deltas=[rows_last(δ) for δ in self.deltas],
            head=rows_last(self.head),
            biased=self.biased,
        )


class TracedScores(AbstractScores):
    """Scores of any policy, by differentiating its `log_prob` at each product."""

    policy: AbstractPolicy
    observations: Float[Array, "row ..."]
    actions: Shaped[Array, "row ..."]

    @property
    def shape(self) -> tuple[int, int]:
        return flatten(self.policy)[0].size, self.observations.shape[0]

    def _log_probs(self) -> tuple[Float[Array, " d"], Callable]:
        """θ, and the function from θ to log π_θ(a|s) of every row."""
        θ, unflatten = flatten(self.policy)
        return θ, lambda θ: jax.vmap(unflatten(θ).log_prob)(self.observations, self.actions)

    def push(self, vector: Float[Array, " d"]) -> Float[Array, " row"]:
        θ, log_probs = self._log_probs()
        return jax.jvp(log_probs, (θ,), (vector,))[1]

    def pull(self, coefficients: Float[Array, " row"]) -> Float[Array, " d"]:
        θ, log_probs = self._log_probs()
        return jax.vjp(log_probs, θ)[1](coefficients)[0]

    def columns(self) -> Float[Array, "d row"]:
        θ, unflatten = flatten(self.policy)
        score = jax.grad(lambda θ, observation, action: unflatten(θ).log_prob(observation, action))
        return jax.vmap(score, in_axes=(None, 0, 0), out_axes=1)(θ, self.observations, self.actions)

    def gram(self) -> Float[Array, "row row"]:
        columns = self.columns()
        return columns.T @ columns

    def squared_norms(self) -> Float[Array, " row"]:
        return jnp.ones(self.shape[1])

    def states(self, start: Shaped[Array, ""] | int, size: int) -> "TracedScores":
        cut = lambda x: lax.dynamic_slice_in_dim(x, start, size)
        return TracedScores(self.policy, cut(self.observations), cut(self.actions))

    def take(self, indices: Int[Array, " sample"]) -> "TracedScores":
        return TracedScores(self.policy, self.observations[indices], self.actions[indices])


def score_matrix(
    policy: AbstractPolicy, observations: Float[Array, "row ..."], actions: Shaped[Array, "row ..."]
) -> tuple[Float[Array, " row"], AbstractScores]:
    """log π(a|s) and the scores ∇log π(a|s) of every row.

    Args:
        policy: π. With an `MLP` the scores are `LayerScores`, else `TracedScores`.
        observations: s of every row.
        actions: a of every row.

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect import tabular_softmax_policy
        >>> from recollect.policies.scores import score_matrix
        >>> policy = tabular_softmax_policy(2, 2)
        >>> log_probs, scores = score_matrix(policy, jnp.eye(2), jnp.array([0, 1]))
        >>> scores.shape  # parameters and transitions
        (4, 2)
        >>> scores.squared_norms().tolist()
        [0.5, 0.5]
    """
    if not isinstance(policy, Policy) or not isinstance(policy.network, MLP):
        log_probs = jax.vmap(policy.log_prob)(observations, actions)
        return log_probs, TracedScores(policy, observations, actions)

    def log_prob(parts, action):
        head, outputs = parts
        return head.log_prob(outputs, action)

    outputs, inputs, back = _through_layers(policy.network, policy.normalise(observations).T)
    each = jax.vmap(jax.value_and_grad(log_prob), in_axes=((None, -1), -1), out_axes=-1)
    log_probs, (on_head, on_outputs) = each((policy.head, outputs), jnp.moveaxis(actions, 0, -1))
    return log_probs, LayerScores(
        inputs=inputs,
        deltas=back(on_outputs),
        head=_stack(on_head, outputs.shape[1]),
        biased=_biased(policy.network),
    )


def has_expected_scores(policy: AbstractPolicy) -> bool:
    """Whether `expected_score_matrix` knows the closed form for a policy."""
    return isinstance(policy, Policy) and isinstance(policy.network, MLP)


def expected_score_matrix(
    policy: AbstractPolicy, observations: Float[Array, "row ..."]
) -> AbstractScores:
    """Scores whose outer products sum, in each state, to E_a[∇log π(a|s) ∇log π(a|s)ᵀ].

    The expectation over actions is in closed form, from the head's `fisher_root`; each state has as
    many scores as that root has rows.

    Args:
        policy: π, a `Policy` with an `MLP`.
        observations: s of every state.

    Raises:
        ValueError: for any other policy.
    """
    if not isinstance(policy, Policy) or not isinstance(policy.network, MLP):
        kind = type(policy.network if isinstance(policy, Policy) else policy).__name__
        raise ValueError(
            "ExpectedFisher needs a Policy with an MLP, whose closed form is known, and not "
            f"{kind}; use ScoreFisher()."
        )
    network = policy.network
    head = policy.head

    def scores(x):
        outputs, inputs, back = _through_layers(network, x[:, None])
        each = jax.vmap(lambda on_head, on_outputs: (back(on_outputs[:, None]), _stack(on_head, 1)))
        deltas, on_head = each(*head.fisher_root(outputs[:, 0]))
        return jax.tree.map(lambda x: x[..., 0], (inputs, deltas, on_head))

    inputs, deltas, on_head = jax.vmap(scores)(policy.normalise(observations))
    return SharedScores(inputs, deltas, on_head, _biased(network))


def _through_layers(network: MLP, x: Float[Array, "in row"]):
    """Forward pass of all rows.

    Written for whole arrays rather than for one row under `vmap`, which would put rows first.

    Returns:
        The outputs, the input of every layer, and the function that back-propagates derivatives by
        the outputs to derivatives by the output of every layer.
    """
    inputs = []
    slopes = []
    for layer in network.layers:
        inputs.append(x)
        x = layer.weight @ x if layer.bias is None else layer.weight @ x + layer.bias[:, None]
        if len(inputs) < len(network.layers):
            x, slope = jax.vjp(ACTIVATIONS[network.activation], x)
            slopes.append(slope)

    def back(δ: Float[Array, "out row"]) -> list[Float[Array, "_ row"]]:
        deltas = [δ]
        for layer, slope in zip(network.layers[:0:-1], slopes[::-1], strict=True):
            deltas.append(slope(layer.weight.T @ deltas[-1])[0])
        return deltas[::-1]

    return x, inputs, back


def _stack(head: AbstractHead, rows: int) -> Float[Array, "m row"]:
    """The head's own arrays, flattened and one above the other."""
    # For heads without arrays: `concatenate` needs at least one.
    empty = jnp.zeros((0, rows))
    return jnp.concatenate([empty, *[leaf.reshape(-1, rows) for leaf in jax.tree.leaves(head)]])


def _biased(network: MLP) -> tuple[bool, ...]:
    return tuple(layer.bias is not None for layer in network.layers)
