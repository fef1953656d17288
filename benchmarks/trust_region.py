"""KL of accepted TRPO steps on fresh states, against the radius, in every compiled environment.

    python benchmarks/trust_region.py

TRPO and RTRPO with default settings and a constant radius of 0.01 train on 8 episodes of at most
200 steps an iteration in each environment. After every accepted step, KL(old ‖ new) is averaged
over the states of 16 fresh episodes of the old policy; the share of steps with at most 1.5 × the
radius is printed.
"""

import dataclasses

import equinox as eqx
import jax
import numpy as np

from recollect import RTRPO, TRPO, Architecture, Episodes, make
from recollect.envs import ENVIRONMENTS, AbstractOracle
from recollect.report.tables import markdown
from recollect.tree import traced_numbers

ITERATIONS = 100
RADIUS = 0.01


def fresh_kls(name: str, algorithm) -> np.ndarray:
    """KL(old ‖ new) of every accepted step of a run, on fresh episodes of the old policy."""
    env = make(name, max_steps=200)
    if isinstance(env, AbstractOracle):
        algorithm = dataclasses.replace(algorithm, discount=float(env.discount))
    algorithm = traced_numbers(algorithm)
    collector = Episodes(8)
    fresh = Episodes(16)
    key = jax.random.key(0)
    policy = Architecture().build(key, env)

    @eqx.filter_jit
    def iterate(state, carry, key):
        keys = jax.random.split(key, 3)
        carry, collected = collector(keys[0], env, state.policy, carry, algorithm.discount)
        after, info = algorithm.update(state, collected, keys[1])
        batch = fresh(keys[2], env, state.policy, None, algorithm.discount)[1].batch
        kls = jax.vmap(jax.vmap(lambda s: state.policy.kl(after.policy, s)))(batch.observations)
        return after, carry, jax.numpy.mean(kls, where=batch.mask), info.refused

    carry = collector.init(key, env)
    batch = collector(key, env, policy, carry, 0.9)[1].batch
    state = algorithm.init(policy, batch, key)
    kls = []
    for i in range(ITERATIONS):
        state, carry, kl, refused = iterate(state, carry, jax.random.fold_in(key, i))
        if refused == 0:
            kls.append(float(kl))
    return np.array(kls)


def main() -> None:
    rows = []
    for name in ENVIRONMENTS:
        for label, algorithm in (
            ("trpo", TRPO(target_kl=RADIUS)),
            ("rtrpo, window 10", RTRPO(window=10, target_kl=RADIUS)),
        ):
            ratios = fresh_kls(name, algorithm) / RADIUS
            row = (
                name,
                label,
                f"{len(ratios)} of {ITERATIONS}",
                f"{np.median(ratios):.2f}",
                f"{np.quantile(ratios, 0.99):.2f}",
                f"{np.mean(ratios <= 1.5):.1%}",
            )
            rows.append(row)
    columns = (
        "environment",
        "algorithm",
        "accepted steps",
        "median KL / radius",
        "99 % quantile / radius",
        "share within 1.5",
    )
    print(*markdown(columns, rows, align="llrrrr"), sep="\n")


if __name__ == "__main__":
    main()
