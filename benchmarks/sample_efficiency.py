"""Environment steps until the mean of the last 20 training episodes reaches a threshold.

    python benchmarks/sample_efficiency.py [--tasks cartpole-500 cartpole-200 pendulum]
        [--seeds 20] [--peer-seeds 10] [--only ours|peers] [--on ray --cluster auto]

Ours beside Stable-Baselines3's. Every seed's figure goes to sample_efficiency.json beside this
script; only seeds that are missing are run (delete it to start afresh), a cell on each core.

Ours are the presets of TRPO, RTRPO, PPO and RPPO, and two controls of RTRPO and RPPO: their
presets with a window of 1, and no reuse but as many gradient steps, since an update sweeps over
the whole window (RPPO's policy and critic, RTRPO's critic). Ratios are of medians, with 95 %
bootstrap intervals over seeds. Seeds start at 0; presets were tuned on seeds from 1000 on.

We look at the threshold after each batch, Stable-Baselines3 after each step, which can only
count against us. Their settings are those of rl-baselines3-zoo (its MuJoCo defaults for TRPO on
the pendulum). A run that misses the threshold counts with its budget. No run can be shorter
than the 20 episodes themselves: threshold × 20 steps, the `floor`.

Needs recollect's extras `test` and `benchmark`, as `make benchmark` installs them; takes about half
an hour.
"""

import argparse
import functools
from collections import deque
from pathlib import Path

import numpy as np
from keep import append, kept, missing
from variants import MUJOCO_TRPO, add_machines, on_machines, ratios, trained, variant, variants

TASKS = {
    "cartpole-500": ("CartPole-v1", 500, 475.0, 100_000),
    "cartpole-200": ("CartPole-v1", 200, 195.0, 100_000),
    "pendulum": ("InvertedPendulum-v5", 1000, 950.0, 200_000),
}
"""Environment, time limit, threshold and budget of steps."""
DATA = Path(__file__).with_suffix(".json")


def ours(task: str, label: str, seeds: range) -> np.ndarray:
    """Steps to the threshold of every seed, infinite where it was missed."""
    from recollect import make

    env, max_steps, threshold, budget = TASKS[task]
    run = trained(
        make(env, max_steps=max_steps),
        variant(env, label),
        seeds,
        environment_steps=budget,
        target_return=threshold,
    )
    steps = np.nanmax(run.curves["environment_steps"], axis=1)
    last = [row[np.isfinite(row)][-1] for row in run.curves["recent_return"]]
    reached = np.array(last) >= threshold
    return np.where(reached, steps, np.inf)


def theirs(task: str, algorithm: str, seed: int) -> float:
    """The same for one seed of Stable-Baselines3."""
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env_name, max_steps, threshold, budget = TASKS[task]
    linear = lambda top: lambda left: left * top
    cartpole_ppo = dict(
        n_steps=32, batch_size=256, n_epochs=20, gae_lambda=0.8, gamma=0.98, ent_coef=0.0
    )
    settings = {
        ("CartPole-v1", "ppo"): dict(
            cartpole_ppo, learning_rate=linear(1e-3), clip_range=linear(0.2)
        ),
        ("CartPole-v1", "trpo"): dict(
            n_steps=512,
            batch_size=512,
            cg_damping=1e-3,
            gae_lambda=0.98,
            gamma=0.99,
            learning_rate=1e-3,
            n_critic_updates=20,
        ),
        ("InvertedPendulum-v5", "ppo"): dict(
            n_steps=32,
            batch_size=64,
            gamma=0.999,
            learning_rate=0.000222425,
            ent_coef=1.37976e-07,
            clip_range=0.4,
            n_epochs=5,
            gae_lambda=0.9,
            max_grad_norm=0.3,
            vf_coef=0.19816,
        ),
        ("InvertedPendulum-v5", "trpo"): MUJOCO_TRPO,
    }[env_name, algorithm]

    class Watch(BaseCallback):
        recent = deque(maxlen=20)
        hit = float("inf")

        def _on_step(self) -> bool:
            self.recent.extend(
                info["episode"]["r"] for info in self.locals["infos"] if "episode" in info
            )
            if len(self.recent) == 20 and sum(self.recent) / 20 >= threshold:
                self.hit = self.num_timesteps
                return False
            return self.num_timesteps < budget

    torch.set_num_threads(1)
    copies = 2 if algorithm == "trpo" else 1 if task == "pendulum" else 8
    env = make_vec_env(
        env_name, n_envs=copies, seed=seed, env_kwargs=dict(max_episode_steps=max_steps)
    )
    if task == "pendulum":
        env = VecNormalize(env, gamma=settings["gamma"])
    watch = Watch()
    watch.recent.clear()
    kind = PPO if algorithm == "ppo" else TRPO
    model = kind("MlpPolicy", env, seed=seed, device="cpu", **settings)
    model.learn(budget, callback=watch)
    return watch.hit


def middle_mean(values: np.ndarray) -> float:
    """Interquartile mean, with fractional weights at the edges of the middle half."""
    n = len(values)
    edges = np.clip(np.arange(n + 1), n / 4, 3 * n / 4)
    return float(np.diff(edges) @ np.sort(values) / (n / 2))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--peer-seeds", type=int, default=10)
    parser.add_argument("--only", choices=("ours", "peers"))
    add_machines(parser)
    options = parser.parse_args()
    names = []
    for task in options.tasks:
        peers = ("sb3 ppo", "sb3 trpo") if options.only != "ours" else ()
        labels = variants(TASKS[task][0]) if options.only != "peers" else ()
        names += [f"{task}: {label}" for label in (*peers, *labels)]
    seeds = lambda name: options.peer_seeds if "sb3" in name else options.seeds
    cells = missing(DATA, {name: seeds(name) for name in names})
    on_machines(options, cell, cells, functools.partial(append, DATA))
    if options.only is None:
        table(options.tasks)


def cell(job: tuple[str, int, int]) -> list[int | None]:
    """Steps of some seeds of "TASK: LABEL", None where the threshold was missed."""
    name, begin, end = job
    task, _, label = name.partition(": ")
    peer = label.removeprefix("sb3 ")
    if peer != label:
        steps = [theirs(task, peer, seed) for seed in range(begin, end)]
    else:
        steps = ours(task, label, range(begin, end))
    return [int(count) if np.isfinite(count) else None for count in steps]


COLUMNS = (
    "task",
    "algorithm",
    "seeds",
    "median steps",
    "IQM",
    "least",
    "most",
    "missed",
    "/ best peer",
    "/ window 1",
    "/ window 1, as many gradient steps",
    "/ vanilla",
)


def table(tasks: list[str]) -> None:
    """All figures, and ratios of medians: to the better peer, both controls, vanilla presets."""
    from recollect.report.tables import markdown

    data = kept(DATA)
    rows = []
    for task in tasks:
        env, _, threshold, budget = TASKS[task]
        labels = ("sb3 ppo", "sb3 trpo", *variants(env))
        labels = [label for label in labels if f"{task}: {label}" in data]
        hits = {label: data[f"{task}: {label}"] for label in labels}
        steps = {
            label: np.array([budget if hit is None else hit for hit in of_seeds])
            for label, of_seeds in hits.items()
        }
        median = {label: float(np.median(counts)) for label, counts in steps.items()}
        best = min(median["sb3 ppo"], median["sb3 trpo"])
        floor = 20 * threshold
        empty = [""] * 4
        rows.append([task, "floor", "", f"{floor:,.0f}", *empty, f"{floor / best:.2f}", *empty[1:]])
        for label, counts in steps.items():
            vanilla = label.removeprefix("r") if label in ("rppo", "rtrpo") else None
            row = [
                task,
                label,
                str(len(counts)),
                f"{median[label]:,.0f}",
                f"{middle_mean(counts):,.0f}",
                f"{counts.min():,}",
                f"{counts.max():,}",
                str(hits[label].count(None)),
                f"{median[label] / best:.2f}",
                *ratios(label, steps, np.median, env),
                "" if vanilla is None else f"{median[label] / median[vanilla]:.2f}",
            ]
            rows.append(row)
    print(*markdown(COLUMNS, rows, align="ll" + "r" * (len(COLUMNS) - 2)), sep="\n")


if __name__ == "__main__":
    main()
