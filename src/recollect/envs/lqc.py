"""The paper's linear quadratic control problem (section 5.5), with its closed forms.

    s' = s + a,    R(s, a) = −(s + a)²,    s₀ ~ N(0, 1),    π_θ(·|s) = N(θ − s, 1)

so that X = s + a ~ N(θ, 1) is independent of s. The text prints π_θ(a|s) = φ(a + s + θ); its own
calculation needs φ(a + s − θ), the form used here, under which ∇η(θ) = −2θ/(1 − γ) and θ* = 0.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.checks import check_number
from recollect.envs.base import AbstractOracle, Actions, Step, check_max_steps
from recollect.prng import normal


class LQCState(eqx.Module):
    """The state s and the number of steps taken."""

    position: Float[Array, ""]
    time: Int[Array, ""]


class LQC(AbstractOracle):
    """Keep an integrator, s' = s + a, at zero; a step pays −(s + a)².

    The exact answers (`expected_return` to `log_occupancy`) hold for the one-parameter
    `ShiftPolicy`, whose θ is `policy.shift`: η(θ) = −(1 + θ²)/(1 − γ).

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect import LQC, ShiftPolicy
        >>> env = LQC(discount=0.5)
        >>> float(env.expected_return(ShiftPolicy(jnp.array(2.0))))  # −(1 + 2²)/(1 − 0.5)
        -10.0
    """

    discount: float = 0.5
    max_steps: int = eqx.field(static=True, default=50)
    observation_size: int = eqx.field(static=True, default=1, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(size=1), init=False)

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

    def reset(self, key: PRNGKeyArray) -> LQCState:
        return LQCState(normal(key), jnp.zeros((), jnp.int32))

    def observe(self, state: LQCState) -> Float[Array, "1"]:
        return state.position[None]

    def step(self, key: PRNGKeyArray, state: LQCState, action: Float[Array, "1"]) -> Step:
        del key
        after = LQCState(state.position + action[0], state.time + 1)
        return Step(
            state=after,
            observation=self.observe(after),
            reward=-(after.position**2),
            terminated=jnp.array(False),
            truncated=after.time >= self.max_steps,
        )

    def expected_return(self, policy) -> Float[Array, ""]:
        return -(1 + policy.shift**2) / (1 - self.discount)

    def advantage(
        self, policy, observation: Float[Array, "1"], action: Float[Array, "1"]
    ) -> Float[Array, ""]:
        return 1 + policy.shift**2 - (observation[0] + action[0]) ** 2

    def draw_states(self, key: PRNGKeyArray, policy, count: int) -> LQCState:
        key_first, key_state = jax.random.split(key)
        # A state of d^π is the first of its episode with probability 1 − γ.
        first = jax.random.uniform(key_first, (count,)) >= self.discount
        return jax.vmap(LQCState)(
            normal(key_state, (count,)) + jnp.where(first, 0, policy.shift),
            jnp.zeros(count, jnp.int32),
        )

    def log_occupancy(self, policy, observation: Float[Array, "1"]) -> Float[Array, ""]:
        """log d(s) = log((1 − γ) φ(s) + γ φ(s − θ)): s₀ ~ N(0, 1), later states are X ~ N(θ, 1)."""
        first = norm.logpdf(observation[0]) + jnp.log1p(-self.discount)
        later = norm.logpdf(observation[0], policy.shift) + jnp.log(self.discount)
        return jnp.logaddexp(first, later)
