"""One natural-gradient solve by each method against rows N and parameters d, and what `auto` picks.

    python benchmarks/solvers.py

Fisher matrix and gradient come from a policy half-way through learning cartpole, because the steps
that conjugate gradients need depend on the spectrum. Times are medians in one run; `auto / best` is
what the cost model loses against the method that was fastest.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp

from recollect.algorithms import RNPG
from recollect.collect.compiled import Steps
from recollect.envs import CartPole
from recollect.estimate.fisher import Fisher
from recollect.estimate.recursions import returns_to_go
from recollect.policies import Policy, softmax_policy
from recollect.policies.scores import score_matrix
from recollect.report.tables import markdown
from recollect.run.train import train
from recollect.step.solve import (
    AbstractSolver,
    Cholesky,
    ConjugateGradients,
    SampleSpace,
    cheapest,
)

DAMPING = 1e-3
NETWORKS = {226: (32,), 1282: (32, 32), 4610: (64, 64)}
"""Widths of hidden layers by the number of parameters."""
ROWS = (100, 400, 800, 2000, 8000, 40_000)
LIMIT = 3e10
"""Methods that need more multiplications than this are left out."""


def trained(widths: tuple[int, ...]) -> Policy:
    """A policy half-way through learning cartpole."""
    start = lambda key: softmax_policy(key, 4, 2, widths)
    return train(
        CartPole(max_steps=200),
        RNPG(window=5, solver=ConjugateGradients()),
        policy=start,
        iterations=30,
        progress=False,
    ).policy()


def problem(rows: int, policy: Policy) -> tuple[Fisher, jax.Array]:
    """Fisher matrix and gradient from `rows` transitions of the policy."""
    env = CartPole(max_steps=200)
    collector = Steps(copies=rows // 100, steps=100)
    key = jax.random.key(1)
    batch = collector(key, env, policy, collector.init(key, env), 0.99)[1].batch
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    _, scores = score_matrix(policy, flat.observations, flat.actions)
    ended = batch.terminated | batch.truncated
    returns = returns_to_go(batch.rewards, ended, batch.mask, 0.99).ravel()
    fisher = Fisher(scores, jnp.full(rows, 1 / rows), jnp.array(rows))
    return fisher, scores.pull((returns - returns.mean()) / rows)


SOLVERS = {"cholesky": Cholesky(), "sample": SampleSpace(), "cg": ConjugateGradients()}


def clock(solver: AbstractSolver, fisher: Fisher, gradient: jax.Array) -> tuple[float, float, int]:
    """Median seconds of a solve, its relative residual and its steps."""
    solve = eqx.filter_jit(
        lambda fisher, gradient: solver(fisher, gradient, DAMPING, jnp.zeros_like(gradient))
    )
    solution = jax.block_until_ready(solve(fisher, gradient))
    times = []
    while len(times) < 3 or (sum(times) < 0.5 and len(times) < 20):
        start = time.perf_counter()
        jax.block_until_ready(solve(fisher, gradient))
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2], float(solution.residual), int(solution.steps)


def main() -> None:
    table = []
    for parameters, widths in NETWORKS.items():
        policy = trained(widths)
        for rows in ROWS:
            fisher, gradient = problem(rows, policy)
            work = {"cholesky": rows * parameters**2, "sample": rows**2 * parameters, "cg": 0}
            clocked = {
                method: clock(SOLVERS[method], fisher, gradient)
                for method, count in work.items()
                if count < LIMIT and (method != "sample" or rows <= 2000)
            }
            seconds = {method: measured[0] for method, measured in clocked.items()}
            _, residual, steps = clocked["cg"]
            choice = cheapest(parameters, rows)
            row = [
                rows,
                parameters,
                *[f"{seconds[m] * 1e3:.2f}" if m in seconds else "–" for m in work],
                steps,
                f"{residual:.1e}",
                choice,
                f"{seconds[choice] / min(seconds.values()):.2f}",
            ]
            table.append(row)
    columns = (
        "N",
        "d",
        "Cholesky ms",
        "sample ms",
        "CG ms",
        "CG steps",
        "CG residual",
        "auto",
        "auto / best",
    )
    print(*markdown(columns, table, align="rrrrrrrlr"), sep="\n")


if __name__ == "__main__":
    main()
