"""Numbers to compare a rearranged program with: make them before, compare them after.

    python tests/golden.py make FOLDER
    python tests/golden.py compare FOLDER [--tolerance 1e-5] [--only TEXT]

Every case is five iterations of one algorithm on one environment, from two seeds, in single and in
double precision; its golden file holds θ after them and the learning curves. `compare` runs the
cases again and prints the largest relative difference of θ. Without a tolerance nothing may differ.
With one, single precision has to stay within it and double precision within its square: 1e-5 asks
for 1e-10 there.

`--commands` adds `recollect paper --quick` and `make run`: all their numbers but seconds.

Everything runs on one core, as XLA adds in another order on two.
"""

import argparse
import csv
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

ITERATIONS = 5
SEEDS = 2
COMMANDS = {
    "run": "compare CartPole-v1 --algorithms vpg rpg vnpg rnpg --max-steps 200 --seeds 20"
    " --iterations 100 --episodes 4 --window 10 --preset paper --out",
    "paper": "paper --quick --out",
}


def cases() -> dict[str, dict]:
    """Arguments of `train` by name."""
    from recollect import (
        GAE,
        Cholesky,
        ConjugateGradients,
        Draws,
        Episodes,
        ExactAdvantages,
        OccupancyRatio,
        PolicyRatio,
        SampleSpace,
        make,
        preset,
    )
    from recollect.algorithms import ALGORITHMS

    found = {}
    discount = float(make("LQC").discount)
    exact = dict(discount=discount, advantages=ExactAdvantages())
    for name, algorithm in ALGORITHMS.items():
        for label, env, engine in (
            ("cartpole", "CartPole-v1", "compiled"),
            ("pendulum", "Pendulum-v1", "compiled"),
            ("pendulum-host", "Pendulum-v1", "gymnasium"),
        ):
            tuned = preset(name, env)
            found[f"{name}-{label}"] = dict(
                env=make(env, engine=engine),
                algorithm=tuned.algorithm,
                collector=tuned.collector,
                policy=tuned.policy,
            )
        found[f"{name}-paper"] = dict(
            env=make("CartPole-v1", max_steps=50),
            algorithm=algorithm(),
            collector=Episodes(4),
        )
        found[f"{name}-lqc"] = dict(
            env=make("LQC"), algorithm=algorithm(**exact), collector=Draws(5)
        )
    rnpg = ALGORITHMS["rnpg"]
    special = {
        "occupancy": rnpg(weights=OccupancyRatio(), **exact),
        "independent": rnpg(independent_fisher=True, objective_scale=True, step_decay=0.9, **exact),
    }
    for name, algorithm in special.items():
        found[name] = dict(env=make("LQC"), algorithm=algorithm, collector=Draws(5))
    cartpole = make("CartPole-v1", max_steps=50)
    special = {
        "linear": rnpg(window=4, fisher_window=2, advantages=GAE(baseline="linear")),
        "discounted": rnpg(discount_states=True, objective_scale=True, solver=ConjugateGradients()),
        "truncated": rnpg(
            weights=PolicyRatio(truncate=1.05, self_normalise=True), solver=SampleSpace()
        ),
        "wide": rnpg(window=3, fisher_window=5, solver=Cholesky()),
        "clip-current": ALGORITHMS["rppo"](clip_centre="current", entropy=0.01, target_kl=0.01),
    }
    for name, algorithm in special.items():
        found[name] = dict(env=cartpole, algorithm=algorithm, collector=Episodes(4))
    return found


def numbers(arguments: dict) -> dict[str, np.ndarray]:
    """θ of all seeds, and the curves."""
    import jax

    from recollect import train

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = train(**arguments, seeds=SEEDS, iterations=ITERATIONS, progress=False)
    leaves = [np.asarray(x) for x in jax.tree.leaves(run.policies) if hasattr(x, "shape")]
    θ = np.concatenate([leaf.reshape(SEEDS, -1) for leaf in leaves], axis=1)
    return {"θ": θ, **run.curves}


def precision(folder: Path, bits: int, only: str, compare: bool, tolerance: float) -> int:
    """Make or compare the files of one precision; how many differ."""
    failed = 0
    for name, arguments in cases().items():
        if only not in name or (
            bits == 64 and "host" in name
        ):  # the host collects in single precision
            continue
        path = folder / f"{name}-{bits}.npz"
        if compare and not path.exists():
            continue
        new = numbers(arguments)
        if not compare:
            np.savez(path, **new)
            continue
        with np.load(path) as kept:
            old = dict(kept)
        allowed = tolerance if bits == 32 else tolerance**2
        scale = np.abs(old["θ"]).max()
        apart = float(np.abs(new["θ"] - old["θ"]).max() / scale)
        bad = not apart <= allowed
        curves = [key for key in old if key in new and key != "θ"]
        same = [np.array_equal(old[key], new[key], equal_nan=True) for key in curves]
        if tolerance == 0 and not all(same):
            bad = True
        failed += bad
        moved = ", ".join(key for key, equal in zip(curves, same, strict=True) if not equal)
        print(
            f"{'FAILED' if bad else 'ok':6} {name}-{bits}: θ {apart:.2e}; curves moved: "
            f"{moved or 'none'}",
            flush=True,
        )
    return failed


def tables(folder: Path) -> dict[str, list[list[str]]]:
    """Rows of every CSV file below a folder, without seconds and timed figures."""
    found = {}
    for path in sorted(folder.rglob("*.csv")):
        if path.name == "fig5.csv":
            continue
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        keep = [i for i, title in enumerate(rows[0]) if "seconds" not in title]
        found[str(path.relative_to(folder))] = [
            [row[i] for i in keep if i < len(row)] for row in rows
        ]
    return found


def commands(folder: Path, compare: bool) -> int:
    failed = 0
    for name, words in COMMANDS.items():
        place = folder / (f"{name}-new" if compare else name)
        subprocess.run(
            [sys.executable, "-m", "recollect.cli", *words.split(), str(place)], check=True
        )
        if compare:
            old, new = tables(folder / name), tables(place)
            for path in old:
                same = old[path] == new.get(path)
                failed += not same
                if not same:
                    print(f"FAILED {name}: {path}")
            print(f"{name}: {len(old)} tables compared")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("make", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.0)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--bits", type=int, choices=(32, 64))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    compare = options.action == "compare"
    if options.bits is not None:
        return precision(options.folder, options.bits, options.only, compare, options.tolerance)
    failed = commands(options.folder, compare) if options.commands else 0
    running = []
    cores = sorted(os.sched_getaffinity(0))
    for i, bits in enumerate((32, 64)):
        words = [sys.executable, __file__, *sys.argv[1:], "--bits", str(bits)]
        words = [word for word in words if word != "--commands"]
        core = cores[i % len(cores)]
        environment = {**os.environ, "JAX_ENABLE_X64": "1" if bits == 64 else "0"}
        hold = lambda core=core: os.sched_setaffinity(0, {core})
        running.append(subprocess.Popen(words, env=environment, preexec_fn=hold))
    failed += sum(process.wait() for process in running)
    print("all the same" if not failed else f"{failed} differ")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
