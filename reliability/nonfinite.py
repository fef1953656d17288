"""NaN and ±∞ in what an environment and a policy give: never in θ, and one warning that names them.

    python reliability/nonfinite.py [TIMES]

For each algorithm, four of five batches are spoiled at a random place: an observation, a reward, a
log-probability (NaN, ∞ or −∞), or so that the gradient overflows (finite rewards of 3·10³⁸). Such
an update has to leave the policy bit for bit as it was, and what a checkpoint holds of the policy,
the critic, the window and the algorithm's own part has to be finite after every iteration.
"""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from common import count, quiet, record, set_up

from recollect.collect.rollout import AbstractCollector
from recollect.run.checkpoint import named_arrays

FIELDS = ("rewards", "observations", "next_observations", "log_probs", "gradient")
ALGORITHMS = ("vpg", "rpg", "vnpg", "rnpg", "trpo", "rtrpo", "ppo", "rppo")


class Spoiling(AbstractCollector):
    """Fixed steps, of whose batches all but every fifth are spoiled."""

    copies: int = eqx.field(static=True, default=2)
    steps: int = eqx.field(static=True, default=8)

    def init(self, key, env):
        return jnp.zeros((), jnp.int32), self._inner().init(key, env)

    def _inner(self):
        from recollect import Steps

        return Steps(self.copies, self.steps)

    def __call__(self, key, env, policy, carry, discount):
        number, inner = carry
        inner, rollout = self._inner()(key, env, policy, inner, discount)
        key_field, key_value, key_place = jax.random.split(jax.random.fold_in(key, 2**31 - 1), 3)
        field = jax.random.randint(key_field, (), 0, len(FIELDS))
        values = jnp.array([jnp.nan, jnp.inf, -jnp.inf])
        value = values[jax.random.randint(key_value, (), 0, 3)]
        row, time = jax.random.randint(key_place, (2,), 0, jnp.array([self.copies, self.steps]))
        batch = rollout.batch
        spoil = number % 5 != 4

        def spoiled(name, array):
            here = spoil & (field == FIELDS.index(name))
            return array.at[row, time].set(jnp.where(here, value, array[row, time]))

        for name in FIELDS[:4]:
            array = spoiled(name, getattr(batch, name))
            batch = eqx.tree_at(lambda batch, n=name: getattr(batch, n), batch, array)
        huge = spoil & (field == FIELDS.index("gradient"))
        signs = jnp.where(jnp.arange(self.steps) % 2, 3e38, -3e38)
        rewards = jnp.where(huge, signs, batch.rewards)
        batch = eqx.tree_at(lambda batch: batch.rewards, batch, rewards)
        rollout = eqx.tree_at(lambda rollout: rollout.batch, rollout, batch)
        return (number + 1, inner), rollout


class Watch:
    """Looks at everything after every iteration."""

    def __init__(self):
        self.policy: dict[str, np.ndarray] = {}
        self.refused = 0
        self.moved = 0
        self.unfinite = 0

    def __call__(self, run, info) -> None:
        learned = named_arrays(run.state.seeds.state)
        self.unfinite += any(
            not np.isfinite(array).all() for array in learned.values() if array.dtype.kind == "f"
        )
        policy = named_arrays(run.policy())
        same = all(np.array_equal(array, policy[name]) for name, array in self.policy.items())
        spoiled = (run.iteration - 1) % 5 != 4
        if spoiled and self.policy:
            self.refused += same
        self.moved += not spoiled and not same
        self.policy = policy


def measure(name: str, times: int) -> tuple[int, int, int, list[str]]:
    """Updates that were refused, clean ones that were made, iterations with a number that is not
    finite in what was learned, and warnings."""
    import recollect as rc

    make = {one.lower(): getattr(rc, one.upper()) for one in ALGORITHMS}
    settings = {} if name in ("vpg", "vnpg", "trpo", "ppo") else {"window": 3}
    algorithm = make[name](advantages=rc.Returns(), **settings)
    watch = Watch()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rc.train(
            rc.CartPole(max_steps=30),
            algorithm,
            collector=Spoiling(),
            policy=rc.Architecture(widths=(4,)),
            iterations=1 + times * 5 // 4,
            callback=watch,
        )
    told = [str(one.message) for one in said if "refused" in str(one.message)]
    return watch.refused, watch.moved, watch.unfinite, told


def main() -> None:
    set_up()
    quiet()
    times = count(1000)
    for name in ALGORITHMS:
        refused, moved, unfinite, told = measure(name, times)
        print(*told, sep="\n")
        result = f"policy left bit for bit as it was {refused:,} times; learned from {moved} clean "
        result += f"batches; {unfinite} numbers in what a checkpoint holds; {len(told)} warning"
        what = f"NaN, ±∞ in observation, reward, log-probability or gradient: {name}"
        record("nonfinite.py", what, f"{times:,}", result)


if __name__ == "__main__":
    main()
