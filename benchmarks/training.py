"""Training RNPG (window 10) on cartpole cut at 200 steps: 50 seeds × 150 iterations × 4 episodes.

    python benchmarks/training.py

Beside it, in the same process, a straightforward prototype of one natural-gradient update for all
seeds (one vmap, padded rows, rows before features, ten plain steps of conjugate gradients), times
the number of iterations: what the library would cost if it were written the first way that comes to
mind. The peak rate of a matrix product in the same run tells how fast the machine was.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from recollect import RNPG, CartPole, softmax_policy, train
from recollect.report.tables import markdown
from recollect.tree import flatten

SEEDS = 50
ITERATIONS = 150
WINDOW = 10
EPISODES = 4
LENGTH = 200
ROWS = WINDOW * EPISODES * LENGTH


def median_seconds(function, *arguments, repeats: int = 3) -> float:
    """Median time of a call; the first, which compiles, does not count."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def sgemm_rate(size: int = 3000) -> float:
    """Floating-point operations a second of a matrix product in single precision."""
    matrix = jax.random.normal(jax.random.key(0), (size, size))
    return 2 * size**3 / median_seconds(jax.jit(jnp.matmul), matrix, matrix)


def prototype_seconds() -> float:
    """Ten plain steps of conjugate gradients for all seeds at once, by linearising the policy."""
    keys = jax.random.split(jax.random.key(0), SEEDS)
    policies = jax.vmap(lambda key: flatten(softmax_policy(key, 4, 2))[0])(keys)
    unflatten = flatten(softmax_policy(keys[0], 4, 2))[1]
    observations = jax.random.normal(keys[0], (SEEDS, ROWS, 4)) * 0.5
    actions = jax.random.bernoulli(keys[1], shape=(SEEDS, ROWS)).astype(jnp.int32)
    advantages = jax.random.normal(keys[2], (SEEDS, ROWS))

    def update(θ, observations, actions, advantages):
        _, push = jax.linearize(lambda θ: jax.vmap(unflatten(θ).log_prob)(observations, actions), θ)
        pull = lambda u: jax.linear_transpose(push, θ)(u)[0]
        gradient = pull(advantages / ROWS)

        def step(_, carry):
            x, r, p, square = carry
            q = pull(push(p) / ROWS) + 1e-3 * p
            α = square / (p @ q)
            r = r - α * q
            return x + α * p, r, r + (r @ r) / square * p, r @ r

        start = (jnp.zeros_like(gradient), gradient, gradient, gradient @ gradient)
        return θ + 0.01 * jax.lax.fori_loop(0, 10, step, start)[0]

    return ITERATIONS * median_seconds(
        jax.jit(jax.vmap(update)), policies, observations, actions, advantages
    )


def main() -> None:
    rate = sgemm_rate()
    prototype = prototype_seconds()
    runs = [
        train(
            CartPole(max_steps=LENGTH),
            RNPG(window=WINDOW),
            seeds=SEEDS,
            iterations=ITERATIONS,
            progress=False,
        )
        for _ in range(3)
    ]
    seconds = sorted(run.clock[-1] for run in runs)
    curves = runs[0].curves
    # Dense operations of the products with the Fisher matrix (4 N d each), of preconditioner and
    # gradient.
    steps = np.nansum(curves["solver_steps"] + 3)
    operations = steps * 4 * ROWS * 226 + SEEDS * ITERATIONS * (1.5 * 512 * 226**2 + 226**3 / 3)
    residual = curves["solver_residual"]
    first, second = [run.compile_seconds for run in runs[:2]]
    figures = {
        "matrix product, float32, all cores": f"{rate / 1e9:.0f} GFLOP/s",
        "prototype: updates alone, all rows padded": f"{prototype:.1f} s",
        "recollect: whole training, three runs": f"{', '.join(f'{s:.1f}' for s in seconds)} s",
        "prototype / recollect (median)": f"{prototype / seconds[1]:.1f}",
        "compilation, first and second call": f"{first:.1f} s, {second:.2f} s",
        "steps of conjugate gradients, mean": f"{np.nanmean(curves['solver_steps']):.1f}",
        "relative residual, mean (largest)": (
            f"{np.nanmean(residual):.4f} ({np.nanmax(residual):.4f})"
        ),
        "solver's operations at the peak rate": f"{operations / rate:.1f} s",
        "mean return over all iterations": f"{np.nanmean(curves['return_mean']):.1f}",
    }
    print(*markdown(("what", "figure"), figures.items()), sep="\n")


if __name__ == "__main__":
    main()
