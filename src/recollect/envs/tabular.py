"""Any finite Markov decision process given as arrays, with exact answers by linear algebra.

States are observed as one-hot vectors, so that tables and networks fit alike. With S states and A
actions every exact answer costs one S×S solve, O(S³ + S²A).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.checks import check_count, check_number
from recollect.envs.base import AbstractOracle, Actions, Step, check_max_steps
from recollect.tree import flatten


class TabularState(eqx.Module):
    index: Int[Array, ""]
    time: Int[Array, ""]


class Tabular(AbstractOracle):
    """A finite MDP: P(s'|s, a), R(s, a), ρ₀(s) and γ. It never terminates; absorbing states loop with no reward."""

    transitions: Float[Array, "state action next"]
    rewards: Float[Array, "state action"]
    initial: Float[Array, " state"]
    discount: float
    max_steps: int = eqx.field(static=True)

    def __init__(self, transitions, rewards, initial, discount: float, max_steps: int = 100):
        self.transitions, self.rewards, self.initial = (
            jnp.asarray(x, jnp.result_type(float)) for x in (transitions, rewards, initial)
        )
        self.discount, self.max_steps = discount, max_steps

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
                f"initial has shape {self.initial.shape}; give one probability for each of {states} states."
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
        return TabularState(
            jax.random.choice(key, self.observation_size, p=self.initial), jnp.zeros((), jnp.int32)
        )

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
        """π(a|s) as a table."""
        states, actions = jnp.eye(self.observation_size), jnp.arange(self.rewards.shape[1])
        return jnp.exp(
            jax.vmap(lambda s: jax.vmap(lambda a: policy.log_prob(s, a))(actions))(states)
        )

    def value(self, policy) -> Float[Array, " state"]:
        """V = (I − γ P^π)⁻¹ R^π."""
        π = self.probabilities(policy)
        dynamics = jnp.einsum("sa,sat->st", π, self.transitions)
        return jnp.linalg.solve(
            jnp.eye(self.observation_size) - self.discount * dynamics, (π * self.rewards).sum(1)
        )

    def advantages(self, policy) -> Float[Array, "state action"]:
        """A = R + γ P V − V, for all states and actions."""
        value = self.value(policy)
        return self.rewards + self.discount * self.transitions @ value - value[:, None]

    def occupancy(self, policy) -> Float[Array, " state"]:
        """d = (1 − γ)(I − γ P^πᵀ)⁻¹ ρ₀, which sums to one."""
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
        """The log of the smallest positive number stands for states that the policy never visits."""
        occupancy = jnp.maximum(self.occupancy(policy), jnp.finfo(observation.dtype).tiny)
        return observation @ jnp.log(occupancy)

    def gradient(self, policy) -> Float[Array, " d"]:
        """∇η = 1/(1 − γ) Σ_{s,a} d(s) π(a|s) A(s, a) ∇log π(a|s), flat in the order of the policy's arrays."""
        weights = (
            self.occupancy(policy)[:, None] * self.probabilities(policy) * self.advantages(policy)
        )
        return jnp.einsum("sa,sad->d", weights, self._scores(policy)) / (1 - self.discount)

    def fisher(self, policy) -> Float[Array, "d d"]:
        """F = Σ_{s,a} d(s) π(a|s) ∇log π(a|s) ∇log π(a|s)ᵀ."""
        scores = self._scores(policy)
        weights = self.occupancy(policy)[:, None] * self.probabilities(policy)
        return jnp.einsum("sa,sad,sae->de", weights, scores, scores)

    def _scores(self, policy) -> Float[Array, "state action d"]:
        θ, unflatten = flatten(policy)
        log_prob = lambda θ, state, action: unflatten(θ).log_prob(state, action)
        states, actions = jnp.eye(self.observation_size), jnp.arange(self.rewards.shape[1])
        return jax.vmap(lambda s: jax.vmap(lambda a: jax.grad(log_prob)(θ, s, a))(actions))(states)


def _check_distribution(field: str, values: Array) -> None:
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
            f"{field} sums to {float(sums[worst]):.6g}{where}; make each distribution over the last axis sum to 1."
        )


def chain(
    length: int = 5, discount: float = 0.9, slip: float = 0.1, max_steps: int = 100
) -> Tabular:
    """A corridor: action 1 moves right, 0 left, the other way with probability `slip`.

    The left end pays 0.1, the right end 1 a step, so the near reward tempts a policy away from the far one.
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
    rewards[0], rewards[-1] = 0.1, 1.0
    return Tabular(transitions, rewards, np.full(length, 1 / length), discount, max_steps)


def gridworld(
    width: int = 4, height: int = 4, discount: float = 0.95, slip: float = 0.1, max_steps: int = 100
) -> Tabular:
    """A grid walked from the first cell to the last: −1 a step until the absorbing goal is reached.

    Actions are up, right, down, left; with probability `slip` the move is one of the four at random.
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
    transitions[-1], rewards[-1] = np.eye(width * height)[-1], 0.0
    return Tabular(transitions, rewards, np.eye(width * height)[0], discount, max_steps)


def garnet(
    seed: int = 0,
    states: int = 10,
    actions: int = 3,
    branching: int = 3,
    discount: float = 0.9,
    max_steps: int = 100,
) -> Tabular:
    """A random MDP: from every (s, a), `branching` successors with random probabilities; uniform random rewards."""
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
