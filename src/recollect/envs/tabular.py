"""Finite Markov decision processes given as arrays, with exact answers by linear algebra.

States are observed as one-hot vectors, so that tables and networks take the same input. With S
states and A actions every exact answer costs one S×S solve, O(S³ + S²A).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.checks import check_count, check_number
from recollect.devices import at_full_precision
from recollect.envs.base import AbstractOracle, Actions, Step, check_max_steps
from recollect.settings import checked
from recollect.tree import flatten


class TabularState(eqx.Module):
    """The number of the state and the number of steps taken."""

    index: Int[Array, ""]
    time: Int[Array, ""]


class Tabular(AbstractOracle):
    """A finite MDP: P(s'|s, a), R(s, a), ρ₀(s) and γ.

    Episodes never terminate, they are only truncated: an absorbing state is one that leads to
    itself and pays nothing.

    Args:
        transitions: P, indexed by state, action and next state.
        rewards: R, indexed by state and action.
        initial: ρ₀, the distribution of the first state.
        discount: γ, in [0, 1).
        max_steps: steps after which an episode is truncated.

    Example:
        Two states, of which the second pays 1 a step; action 0 stays, action 1 changes the state.

        >>> import jax.numpy as jnp
        >>> from recollect import Tabular, tabular_softmax_policy
        >>> transitions = jnp.stack([jnp.eye(2), 1 - jnp.eye(2)], axis=1)
        >>> rewards = jnp.array([[0.0, 0.0], [1.0, 1.0]])
        >>> env = Tabular(transitions, rewards, initial=jnp.array([1.0, 0.0]), discount=0.5)
        >>> policy = tabular_softmax_policy(2, 2)  # uniform
        >>> round(float(env.expected_return(policy)), 4)  # Σ_{t≥1} 0.5^t · ½
        0.5
        >>> env.advantages(policy).shape
        (2, 2)
    """

    transitions: Float[Array, "state action next"]
    rewards: Float[Array, "state action"]
    initial: Float[Array, " state"]
    discount: float
    max_steps: int = eqx.field(static=True)

    def __init__(self, transitions, rewards, initial, discount: float, max_steps: int = 100):
        dtype = jnp.result_type(float)
        self.transitions = jnp.asarray(transitions, dtype)
        self.rewards = jnp.asarray(rewards, dtype)
        self.initial = jnp.asarray(initial, dtype)
        self.discount = discount
        self.max_steps = max_steps

    def __check_init__(self):
        check_number(
            "discount",
            self.discount,
            low=0,
            high=1,
            open_high=True,
            remedy="give a discount in [0, 1)",
        )
        check_max_steps(self.max_steps)
        if self.rewards.ndim != 2 or 0 in self.rewards.shape:
            shape = self.rewards.shape
            raise ValueError(f"rewards has shape {shape}; give one for each (state, action).")
        states, actions = self.rewards.shape
        if self.transitions.shape != (states, actions, states):
            raise ValueError(
                f"transitions has shape {self.transitions.shape}, rewards {self.rewards.shape}; "
                f"give transitions as (state, action, next state) = {(states, actions, states)}."
            )
        if self.initial.shape != (states,):
            raise ValueError(
                f"initial has shape {self.initial.shape}; "
                f"give one probability for each of {states} states."
            )
        for field in ("transitions", "initial"):
            _check_distribution(field, getattr(self, field))
        if not isinstance(self.rewards, Tracer) and not np.isfinite(self.rewards).all():
            raise ValueError("rewards has entries that are not finite; give finite rewards.")

    @property
    def observation_size(self) -> int:
        return self.rewards.shape[0]

    @property
    def actions(self) -> Actions:
        return Actions(count=self.rewards.shape[1])

    def reset(self, key: PRNGKeyArray) -> TabularState:
        index = jax.random.choice(key, self.observation_size, p=self.initial)
        return TabularState(index, jnp.zeros((), jnp.int32))

    def observe(self, state: TabularState) -> Float[Array, " state"]:
        return jax.nn.one_hot(state.index, self.observation_size)

    def step(self, key: PRNGKeyArray, state: TabularState, action: Int[Array, ""]) -> Step:
        index = jax.random.choice(
            key, self.observation_size, p=self.transitions[state.index, action]
        )
        after = TabularState(index, state.time + 1)
        return Step(
            state=after,
            observation=self.observe(after),
            reward=self.rewards[state.index, action],
            terminated=jnp.array(False),
            truncated=after.time >= self.max_steps,
        )

    def probabilities(self, policy) -> Float[Array, "state action"]:
        """π(a|s) for all states and actions."""
        states = jnp.eye(self.observation_size)
        actions = jnp.arange(self.rewards.shape[1])
        log_probs = jax.vmap(lambda s: jax.vmap(lambda a: policy.log_prob(s, a))(actions))(states)
        return jnp.exp(log_probs)

    def value(self, policy) -> Float[Array, " state"]:
        """V = (I − γ P^π)⁻¹ R^π, for all states."""
        π = self.probabilities(policy)
        dynamics = jnp.einsum("sa,sat->st", π, self.transitions)
        system = jnp.eye(self.observation_size) - self.discount * dynamics
        return jnp.linalg.solve(system, (π * self.rewards).sum(1))

    def advantages(self, policy) -> Float[Array, "state action"]:
        """A = R + γ P V − V, for all states and actions."""
        value = self.value(policy)
        return self.rewards + self.discount * self.transitions @ value - value[:, None]

    def occupancy(self, policy) -> Float[Array, " state"]:
        """d = (1 − γ)(I − γ P^πᵀ)⁻¹ ρ₀, for all states; it sums to one."""
        dynamics = jnp.einsum("sa,sat->st", self.probabilities(policy), self.transitions)
        system = jnp.eye(self.observation_size) - self.discount * dynamics.T
        return (1 - self.discount) * jnp.linalg.solve(system, self.initial)

    def expected_return(self, policy) -> Float[Array, ""]:
        return self.initial @ self.value(policy)

    def advantage(
        self, policy, observation: Float[Array, " state"], action: Int[Array, ""]
    ) -> Float[Array, ""]:
        return observation @ self.advantages(policy)[:, action]

    def draw_states(self, key: PRNGKeyArray, policy, count: int) -> TabularState:
        indices = jax.random.choice(key, self.observation_size, (count,), p=self.occupancy(policy))
        return jax.vmap(TabularState)(indices, jnp.zeros(count, jnp.int32))

    def log_occupancy(self, policy, observation: Float[Array, " state"]) -> Float[Array, ""]:
        """log d(s); for a state that π never visits, the log of the smallest positive number."""
        occupancy = jnp.maximum(self.occupancy(policy), jnp.finfo(observation.dtype).tiny)
        return observation @ jnp.log(occupancy)

    def gradient(self, policy) -> Float[Array, " d"]:
        """∇η = 1/(1 − γ) Σ_{s,a} d(s) π(a|s) A(s, a) ∇log π(a|s).

        Returns:
            One vector, in the order in which `flatten` puts the policy's arrays.
        """
        weights = (
            self.occupancy(policy)[:, None] * self.probabilities(policy) * self.advantages(policy)
        )
        return jnp.einsum("sa,sad->d", weights, self._scores(policy)) / (1 - self.discount)

    @at_full_precision
    def fisher(self, policy) -> Float[Array, "d d"]:
        """F = Σ_{s,a} d(s) π(a|s) ∇log π(a|s) ∇log π(a|s)ᵀ, the Fisher matrix."""
        scores = self._scores(policy)
        weights = self.occupancy(policy)[:, None] * self.probabilities(policy)
        return jnp.einsum("sa,sad,sae->de", weights, scores, scores)

    def _scores(self, policy) -> Float[Array, "state action d"]:
        """∇log π(a|s) for all states and actions."""
        θ, unflatten = flatten(policy)
        log_prob = lambda θ, state, action: unflatten(θ).log_prob(state, action)
        states = jnp.eye(self.observation_size)
        actions = jnp.arange(self.rewards.shape[1])
        return jax.vmap(lambda s: jax.vmap(lambda a: jax.grad(log_prob)(θ, s, a))(actions))(states)


def _check_distribution(field: str, values: Array) -> None:
    """Raise unless `values` are distributions over the last axis. Traced values pass unchecked."""
    if isinstance(values, Tracer):
        return
    table = np.asarray(values)
    if not np.isfinite(table).all() or (table < 0).any():
        raise ValueError(
            f"{field} has entries that are negative or not finite; give probabilities."
        )
    sums = table.sum(-1)
    if not np.allclose(sums, 1, atol=1e-5):
        worst = np.unravel_index(np.abs(sums - 1).argmax(), sums.shape)
        where = f" at {tuple(map(int, worst))}" if sums.ndim else ""
        raise ValueError(
            f"{field} sums to {float(sums[worst]):.6g}{where}; "
            "make each distribution over the last axis sum to 1."
        )


@checked
def chain(
    length: int = 5, discount: float = 0.9, slip: float = 0.1, max_steps: int = 100
) -> Tabular:
    """A corridor whose left end pays 0.1 and whose right end pays 1 a step.

    Action 0 moves left and action 1 right, except that a move goes the other way with probability
    `slip`. At an end, a move outwards stays. Episodes start in a uniformly random state, and on the
    left the small reward nearby competes with the large one far away.

    Args:
        length: number of states.
        discount: γ, in [0, 1).
        slip: probability of moving the other way.
        max_steps: steps after which an episode is truncated.

    Returns:
        A finite MDP with exact answers.

    Example:
        >>> from recollect import chain
        >>> chain(length=3, slip=0.0).transitions[:, 1].tolist()  # action 1
        [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    """
    check_count("length", length)
    check_number("slip", slip, low=0, high=1, remedy="give a probability")
    here = np.arange(length)
    left = np.eye(length)[np.maximum(here - 1, 0)]
    right = np.eye(length)[np.minimum(here + 1, length - 1)]
    transitions = np.stack(
        [(1 - slip) * left + slip * right, slip * left + (1 - slip) * right], axis=1
    )
    rewards = np.zeros((length, 2))
    rewards[0] = 0.1
    rewards[-1] = 1.0
    return Tabular(transitions, rewards, np.full(length, 1 / length), discount, max_steps)


@checked
def gridworld(
    width: int = 4, height: int = 4, discount: float = 0.95, slip: float = 0.1, max_steps: int = 100
) -> Tabular:
    """A grid to be crossed from the first cell to the last, at −1 a step until it is reached.

    Actions 0 to 3 move up, right, down, left; a move off the grid stays. The goal is absorbing and
    pays 0.

    Args:
        width: number of columns.
        height: number of rows.
        discount: γ, in [0, 1).
        slip: probability that the move is one of the four drawn uniformly instead.
        max_steps: steps after which an episode is truncated.

    Returns:
        A finite MDP with exact answers.

    Example:
        >>> from recollect import gridworld
        >>> env = gridworld(width=3, height=2)
        >>> env.observation_size, env.actions.count
        (6, 4)
    """
    check_count("width", width)
    check_count("height", height)
    check_number("slip", slip, low=0, high=1, remedy="give a probability")
    row, column = np.divmod(np.arange(width * height), width)
    moves = [(-1, 0), (0, 1), (1, 0), (0, -1)]
    targets = [
        np.clip(row + dr, 0, height - 1) * width + np.clip(column + dc, 0, width - 1)
        for dr, dc in moves
    ]
    intended = np.stack([np.eye(width * height)[target] for target in targets], axis=1)
    transitions = (1 - slip) * intended + slip * intended.mean(1, keepdims=True)
    rewards = np.full((width * height, 4), -1.0)
    transitions[-1] = np.eye(width * height)[-1]
    rewards[-1] = 0.0
    return Tabular(transitions, rewards, np.eye(width * height)[0], discount, max_steps)


@checked
def garnet(
    seed: int = 0,
    states: int = 10,
    actions: int = 3,
    branching: int = 3,
    discount: float = 0.9,
    max_steps: int = 100,
) -> Tabular:
    """A random MDP of the Garnet family.

    Every (state, action) has `branching` distinct successors. Their probabilities, and those of the
    first state, are drawn from Dirichlet(1, …, 1), rewards uniformly from [0, 1).

    Args:
        seed: of NumPy's generator.
        states: number of states.
        actions: number of actions.
        branching: successors of each (state, action), at most `states`.
        discount: γ, in [0, 1).
        max_steps: steps after which an episode is truncated.

    Returns:
        A finite MDP with exact answers.

    Example:
        >>> from recollect import garnet
        >>> env = garnet(states=6, actions=2, branching=3)
        >>> (env.transitions > 0).sum(-1).tolist()
        [[3, 3], [3, 3], [3, 3], [3, 3], [3, 3], [3, 3]]
    """
    for field, value in dict(states=states, actions=actions, branching=branching).items():
        check_count(field, value)
    check_number(
        "branching",
        branching,
        low=1,
        high=states,
        remedy=f"give at most the number of states, {states}",
    )
    draw = np.random.default_rng(seed)
    transitions = np.zeros((states, actions, states))
    for state in range(states):
        for action in range(actions):
            successors = draw.choice(states, branching, replace=False)
            transitions[state, action, successors] = draw.dirichlet(np.ones(branching))
    return Tabular(
        transitions,
        draw.uniform(size=(states, actions)),
        draw.dirichlet(np.ones(states)),
        discount,
        max_steps,
    )
