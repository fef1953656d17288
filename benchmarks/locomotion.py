"""Hopper-v5 and HalfCheetah-v5 for 200,000 steps, ours beside Stable-Baselines3's.

    python benchmarks/locomotion.py [--seeds 5] [--only "Hopper-v5: rtrpo" | sb3 | speed | ...]
        [--on ray --cluster auto]

Ours are the presets of TRPO, RTRPO, PPO and RPPO, those of RTRPO and RPPO with a window of 1,
and RPPO without reuse but with as many gradient steps, since its update sweeps over the whole
window. RTRPO's critic is fitted to the newest batch here, so that its window takes no more
steps. Seeds start at 0; presets were tuned on seeds from 1000 on. Settings of
Stable-Baselines3's PPO and sb3-contrib's TRPO are those of rl-baselines3-zoo for the same
environments (version 3 or 4), with its normalisation of observations and rewards.

Every curve is the mean return of the training episodes that ended within each hundredth of the
steps. Its last tenth is the final return, its mean the area under the curve; intervals are 95 %
bootstrap intervals of the mean over seeds, or of the ratio of means over the seeds that both
have. Every seed's figures go to locomotion.json beside this script; what is there is not run
again, only seeds that are missing, and the tables show what is there: `--seeds 20 --only
"Hopper-v5: rtrpo"` has added seeds to the rows whose comparison five seeds could not settle.

The speed table compares whole training with RTRPO's preset on 8 copies of Hopper-v5 with stepping
the same copies with random actions, in one process and in turns, and with whole training by
Stable-Baselines3 on 8 copies; intervals are over turns.

Needs recollect's extras `test` and `benchmark`, as `make benchmark` installs them; takes about an
hour and a half with 5 seeds.
"""

import argparse
import functools
import time
from pathlib import Path

import numpy as np
from keep import append, kept, missing, remember
from variants import (
    MUJOCO_TRPO,
    add_machines,
    binned,
    curves_of,
    mean_interval,
    on_machines,
    ratio,
    ratios,
    trained,
    variant,
    variants,
)

ENVIRONMENTS = ("Hopper-v5", "HalfCheetah-v5")
STEPS = 200_000
POINTS = 100
DATA = Path(__file__).with_suffix(".json")


def peer_settings(env: str, algorithm: str) -> tuple[int, dict]:
    """Copies of the environment, and settings, as rl-baselines3-zoo has them."""
    from torch import nn

    big = dict(
        log_std_init=-2,
        ortho_init=False,
        activation_fn=nn.ReLU,
        net_arch=dict(pi=[256, 256], vf=[256, 256]),
    )
    hopper = dict(
        batch_size=32,
        n_steps=512,
        gamma=0.999,
        learning_rate=9.80828e-05,
        ent_coef=0.00229519,
        clip_range=0.2,
        n_epochs=5,
        gae_lambda=0.99,
        max_grad_norm=0.7,
        vf_coef=0.835671,
        policy_kwargs=big,
    )
    cheetah = dict(
        batch_size=64,
        n_steps=512,
        gamma=0.98,
        learning_rate=2.0633e-05,
        ent_coef=0.000401762,
        clip_range=0.1,
        n_epochs=20,
        gae_lambda=0.92,
        max_grad_norm=0.8,
        vf_coef=0.58096,
        policy_kwargs=big,
    )
    return {
        ("Hopper-v5", "trpo"): (2, MUJOCO_TRPO),
        ("HalfCheetah-v5", "trpo"): (2, dict(MUJOCO_TRPO, target_kl=0.04)),
        ("Hopper-v5", "ppo"): (1, hopper),
        ("HalfCheetah-v5", "ppo"): (1, cheetah),
    }[env, algorithm]


def peer(env_name: str, algorithm: str, seed: int, copies: int | None = None):
    """A model of Stable-Baselines3 that is ready to learn.

    Args:
        env_name: of the environment.
        algorithm: ppo or trpo.
        seed: of the model and the environments.
        copies: of the environment, with as many steps an iteration as with the usual number.
    """
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    usual, settings = peer_settings(env_name, algorithm)
    if copies is not None:
        settings = dict(settings, n_steps=usual * settings["n_steps"] // copies)
    env = make_vec_env(env_name, n_envs=copies or usual, seed=seed)
    env = VecNormalize(env, gamma=settings["gamma"])
    torch.set_num_threads(1)
    kind = PPO if algorithm == "ppo" else TRPO
    return kind("MlpPolicy", env, seed=seed, device="cpu", **settings)


def theirs(env_name: str, algorithm: str, seed: int) -> list[float]:
    """The curve of one seed of Stable-Baselines3."""
    from stable_baselines3.common.callbacks import BaseCallback

    steps = []
    returns = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    steps.append(self.num_timesteps)
                    returns.append(info["episode"]["r"])
            return self.num_timesteps < STEPS

    peer(env_name, algorithm, seed).learn(STEPS, callback=Watch())
    return binned(np.array(steps), np.array(returns), STEPS, POINTS)


def cell(job: tuple[str, int, int]) -> list[list[float]]:
    """The curves of some seeds of "ENV: LABEL"."""
    name, begin, end = job
    env, _, label = name.partition(": ")
    seeds = range(begin, end)
    if label.startswith("sb3 "):
        return [theirs(env, label.removeprefix("sb3 "), seed) for seed in seeds]
    run = trained(env, variant(env, label), seeds, environment_steps=STEPS)
    return curves_of(run, STEPS, POINTS)


def speed(rounds: int = 15) -> dict[str, list[float]]:
    """Steps a second on 8 copies of Hopper-v5, in turns.

    Random actions, and training without its compilation.
    """
    import gymnasium as gym
    from gymnasium.vector import SyncVectorEnv

    from recollect import make, train
    from recollect.run.presets import preset

    env = make("Hopper-v5")
    chosen = preset("rtrpo", "Hopper-v5")
    copies = 8
    vector = env.open(copies, 0)
    actions = np.random.default_rng(0).uniform(-1, 1, (500, copies, 3)).astype(np.float32)
    vector.reset(range(copies))
    sync = SyncVectorEnv([lambda: gym.make("Hopper-v5")] * copies, autoreset_mode="SameStep")
    sync.reset(seed=0)

    def random_steps() -> float:
        began = time.perf_counter()
        for action in actions:
            stepped = vector.step(action, np.ones(copies, bool))
            ended = stepped.terminated | stepped.truncated
            if ended.any():
                vector.restart(ended, lambda copy: copy)
        return len(actions) * copies / (time.perf_counter() - began)

    def random_steps_of_gymnasium() -> float:
        began = time.perf_counter()
        for action in actions:
            sync.step(action)
        return len(actions) * copies / (time.perf_counter() - began)

    def training() -> float:
        run = train(
            env,
            chosen.algorithm,
            collector=chosen.collector,
            policy=chosen.policy,
            environment_steps=10_000,
            progress=False,
        )
        return float(run.curves["environment_steps"][0, -1] / run.clock[-1])

    def peer_training(algorithm: str) -> float:
        model = peer("Hopper-v5", algorithm, 0, copies)
        began = time.perf_counter()
        model.learn(8192)
        return model.num_timesteps / (time.perf_counter() - began)

    ways = {
        "random actions, our vector": random_steps,
        "random actions, Gymnasium's SyncVectorEnv": random_steps_of_gymnasium,
        "training, recollect RTRPO": training,
        "training, sb3-contrib TRPO": lambda: peer_training("trpo"),
        "training, Stable-Baselines3 PPO": lambda: peer_training("ppo"),
    }
    training()  # compiles
    rates = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            rates[name].append(round(measure(), 1))
    vector.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only rows whose name contains this text"
    )
    add_machines(parser)
    options = parser.parse_args()
    if options.only in "speed":
        remember(DATA, "speed", speed)
    names = [
        f"{env}: {label}"
        for env in ENVIRONMENTS
        for label in ("sb3 trpo", "sb3 ppo", *variants(env))
    ]
    wanted = {name: options.seeds for name in names if options.only in name}
    on_machines(options, cell, missing(DATA, wanted), functools.partial(append, DATA))
    table()


def table() -> None:
    """Print the learning curves' figures, and the speeds if they were measured."""
    from recollect.report.tables import markdown

    data = kept(DATA)
    columns = (
        "environment",
        "algorithm",
        "seeds",
        "final return",
        "area under the curve",
        "/ best peer",
        "/ window 1",
        "/ window 1, as many gradient steps",
        "/ vanilla",
    )
    rows = [row for env in ENVIRONMENTS for row in learning_rows(env, data)]
    print(*markdown(columns, rows, align="llrrrrrrr"), sep="\n")
    if "speed" in data:
        columns = ("Hopper-v5, 8 copies", "steps/s", "/ random actions")
        print("", *markdown(columns, speed_rows(data["speed"])), sep="\n")


def learning_rows(env: str, data: dict) -> list[list[str]]:
    """Returns of every algorithm in an environment, and ratios of areas under the curves."""
    labels = ("sb3 ppo", "sb3 trpo", *variants(env))
    curves = {
        label: np.array(data[f"{env}: {label}"]) for label in labels if f"{env}: {label}" in data
    }
    areas = {label: values.mean(1) for label, values in curves.items()}
    area = {label: float(values.mean()) for label, values in areas.items()}
    best = max(area.get("sb3 ppo", 0.0), area.get("sb3 trpo", 0.0))
    rows = []
    for label, values in curves.items():
        vanilla = area.get(label.removeprefix("r")) if label in ("rppo", "rtrpo") else None
        row = [
            env,
            label,
            str(len(values)),
            mean_interval(values[:, -POINTS // 10 :].mean(1)),
            mean_interval(areas[label]),
            f"{area[label] / best:.2f}" if best else "",
            *ratios(label, areas, np.mean, env),
            "" if vanilla is None else f"{area[label] / vanilla:.2f}",
        ]
        rows.append(row)
    return rows


def speed_rows(rates: dict[str, list[float]]) -> list[list[str]]:
    """Steps a second, and over those of random actions with an interval over turns."""
    seconds = {name: 1 / np.array(one) for name, one in rates.items()}
    random = seconds["random actions, our vector"]
    return [
        [name, f"{1 / taken.mean():,.0f}", ratio(random, taken, np.mean)]
        for name, taken in seconds.items()
    ]


if __name__ == "__main__":
    main()
