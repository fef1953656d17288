"""Default settings on tasks that they were not made for, beside Stable-Baselines3's.

    python benchmarks/defaults.py [--only "Hopper-v5: rtrpo" | sb3 | ...] [--hours 2]
        [--on ray --cluster auto]

All eight algorithms with their defaults, 100,000 steps and 10 seeds a task, beside
Stable-Baselines3's PPO and sb3-contrib's TRPO with theirs. VPG, VNPG, TRPO and PPO are what RPG,
RNPG, RTRPO and RPPO are with a window of 1; a longer window also takes more gradient steps of the
critic, and of RPPO's policy, so each has a control without reuse that takes as many (see
`recollect.algorithms.control`). “rppo, earlier” has the network that was RPPO's default before.

Defaults were chosen on CartPole-v1, Pendulum-v1, Hopper-v5 and HalfCheetah-v5, with seeds from
1000 on. The other tasks are run once, with the seeds reported. Every curve is the mean return of
the training episodes that ended within each fortieth of the steps; its mean is the area, that of
its last quarter the final return. Intervals are 95 % bootstrap intervals over seeds, of the mean or
of the difference of means. What is pooled over tasks is on a common scale: 0 is the mean return of
random actions, 1 the best area of any algorithm on the task. On MountainCar-v0 and our own Chain,
where rewards are late or rare, ours are run alone.

Each cell is run on one core, beside others on the others, and goes to defaults.json beside this
script once it is finished; what is there is not run again. Tables and defaults.png show what is
there. Seconds are those of ten seeds on one core, with compilation. Needs recollect's extras `test`
and `benchmark`, as `make benchmark` installs them; all of it takes some eight hours on two cores.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
from keep import kept, write
from variants import add_machines, binned, curves_of, on_machines, trained

TUNED_ON = ("CartPole-v1", "Pendulum-v1", "Hopper-v5", "HalfCheetah-v5")
UNFAMILIAR = (
    "Acrobot-v1",
    "Walker2d-v5",
    "InvertedDoublePendulum-v5",
    "FrozenLake-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "MiniGrid-Empty-8x8-v0",
)
TASKS = (*UNFAMILIAR, *TUNED_ON)
SPARSE = ("MountainCar-v0", "Chain")
"""Where rewards are late or rare, as on FrozenLake-v1: what ours do there, beside no peer."""
PAIRS = {"rpg": "vpg", "rnpg": "vnpg", "rtrpo": "trpo", "rppo": "ppo"}
"""What reuses, and the same with a window of 1."""
CONTROLS = {name: f"{name}, window 1, as many steps" for name in PAIRS}
EIGHT = tuple(label for name, vanilla in PAIRS.items() for label in (vanilla, name))
EARLIER = "rppo, earlier"
PEERS = ("sb3 ppo", "sb3 trpo")
LABELS = (*EIGHT, *PEERS, *CONTROLS.values(), EARLIER)
STEPS = 100_000
POINTS = 40
SEEDS = 10
DATA = Path(__file__).with_suffix(".json")


def gym_env(name: str):
    """The Gymnasium environment of a task, as both libraries get it."""
    import gymnasium as gym

    if not name.startswith("MiniGrid"):
        return gym.make(name)
    from minigrid.wrappers import ImgObsWrapper

    return gym.wrappers.FlattenObservation(ImgObsWrapper(gym.make(name)))


def random_return(task: str, episodes: int = 100) -> float:
    """Mean return of uniformly random actions."""
    env = gym_env(task)
    env.action_space.seed(0)
    total = 0.0
    for episode in range(episodes):
        env.reset(seed=episode)
        ended = False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return round(total / episodes, 3)


def settings(label: str):
    """The settings of one of ours."""
    from recollect import Architecture
    from recollect.algorithms.control import equal_steps_control
    from recollect.run.presets import preset

    chosen = preset(label.partition(",")[0], "default")
    if label == EARLIER:
        network = Architecture(widths=(32,), activation="relu", log_std=0.0)
        return dataclasses.replace(chosen, policy=network)
    if label in CONTROLS.values():
        batch = chosen.collector.copies * chosen.collector.steps
        control = equal_steps_control(chosen.algorithm, batch)
        return dataclasses.replace(chosen, algorithm=control)
    return chosen


def measured(env, chosen, seeds, steps: int = STEPS) -> dict[str, Any]:
    """Our curves, and what they took."""
    began = time.perf_counter()
    run = trained(env, chosen, seeds, environment_steps=steps)
    last = np.nanmax(run.curves["environment_steps"], axis=1)
    return {
        "curves": curves_of(run, steps, POINTS),
        "seconds": round(time.perf_counter() - began, 1),
        "steps": [int(total) for total in last],
        "refused": int((run.curves["refused"] > 0).sum()),
    }


def peer(task: str, algorithm: str, seed: int) -> list[float]:
    """The curve of one seed of Stable-Baselines3."""
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    ended = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            episodes = [info["episode"] for info in self.locals["infos"] if "episode" in info]
            ended.extend((self.num_timesteps, episode["r"]) for episode in episodes)
            return self.num_timesteps < STEPS

    torch.set_num_threads(1)
    kind = {"ppo": PPO, "trpo": TRPO}[algorithm]
    env = make_vec_env(lambda: gym_env(task), seed=seed)
    kind("MlpPolicy", env, seed=seed, device="cpu").learn(STEPS, callback=Watch())
    steps, returns = np.array(ended).T
    return binned(steps, returns, STEPS, POINTS)


def cell(name: str) -> dict[str, Any]:
    """The figures of a task and a label, "TASK: LABEL"."""
    task, _, label = name.partition(": ")
    if label == "random":
        return {"mean": random_return(task)}
    if label in PEERS:
        began = time.perf_counter()
        curves = [peer(task, label.removeprefix("sb3 "), seed) for seed in range(SEEDS)]
        return {"curves": curves, "seconds": round(time.perf_counter() - began, 1)}
    import jax

    chosen = settings(label)
    env = (lambda: gym_env(task)) if task.startswith("MiniGrid") else task
    if task == "Chain":
        from recollect import make

        discount = float(make(task).discount)
        algorithm = dataclasses.replace(chosen.algorithm, discount=discount)
        chosen = dataclasses.replace(chosen, algorithm=algorithm)
    try:
        return measured(env, chosen, range(SEEDS))
    finally:
        jax.clear_caches()  # the next cell compiles programs of its own


class Figures:
    """What was measured on a task."""

    def __init__(self, task: str, data: dict[str, Any]):
        found = {label: data.get(f"{task}: {label}") for label in LABELS}
        self.cells = {label: one for label, one in found.items() if one is not None}
        self.areas = {label: np.mean(one["curves"], 1) for label, one in self.cells.items()}
        last = lambda one: np.array(one["curves"])[:, -POINTS // 4 :].mean(1)
        self.finals = {label: last(one) for label, one in self.cells.items()}
        self.random = data.get(f"{task}: random", {}).get("mean", 0.0)

    def best(self, labels) -> str | None:
        """The label with the largest mean area."""
        there = [label for label in labels if label in self.areas]
        return max(there, key=lambda label: self.areas[label].mean(), default=None)

    def scaled(self, label: str) -> np.ndarray | None:
        """Areas of the seeds on the common scale."""
        if label not in self.areas:
            return None
        most = max(areas.mean() for areas in self.areas.values())
        return (self.areas[label] - self.random) / (most - self.random)


def difference(ours: np.ndarray, theirs: np.ndarray):
    """Difference of means with its interval; seeds of two libraries have nothing in common."""
    from recollect.statistics import bootstrap

    apart = lambda ours, theirs: ours.mean(1) - theirs.mean(1)
    return bootstrap(apart, ours, theirs, resamples=10_000, paired=False)


def pooled(tasks: list[Figures], ours: str, theirs: str):
    """Mean difference on the common scale, seeds drawn anew within every task."""
    from recollect.statistics import bootstrap

    pairs = [(one.scaled(ours), one.scaled(theirs)) for one in tasks]
    pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not pairs:
        return None
    samples = [sample for pair in pairs for sample in pair]
    apart = lambda *means: np.mean(
        [a.mean(1) - b.mean(1) for a, b in zip(means[::2], means[1::2], strict=True)], axis=0
    )
    return len(pairs), bootstrap(apart, *samples, resamples=10_000, paired=False)


def report(data: dict[str, Any]) -> list[str]:
    """Tables in Markdown."""
    from recollect.report.tables import markdown
    from recollect.statistics import bootstrap

    figures = {task: Figures(task, data) for task in (*TASKS, *SPARSE)}
    interval = lambda values: bootstrap(lambda x: x.mean(1), values, resamples=10_000)
    show = lambda e: f"{e.value:,.4g} ({e.low:,.4g} – {e.high:,.4g})"
    lines = ["Area under the learning curve, mean over seeds (95 % interval):", ""]
    there = [task for task in (*TASKS, *SPARSE) if figures[task].cells]
    rows = []
    for label in LABELS:
        areas = [figures[task].areas.get(label) for task in there]
        rows.append([label, *("" if one is None else show(interval(one)) for one in areas)])
    lines += [*markdown(("", *there), rows), "", "Mean of the last quarter:", ""]
    rows = []
    for label in LABELS:
        finals = [figures[task].finals.get(label) for task in there]
        rows.append([label, *("" if one is None else show(interval(one)) for one in finals)])
    lines += [*markdown(("", *there), rows), "", "Seconds of one core for ten seeds:", ""]
    rows = []
    for label in LABELS:
        cells = [figures[task].cells.get(label) for task in there]
        rows.append([label, *("" if one is None else f"{one['seconds']:,.0f}" for one in cells)])
    lines += [*markdown(("", *there), rows), "", "Bars:", ""]
    rows = []
    for task in (task for task in there if task not in SPARSE):
        one = figures[task]
        ours, theirs = one.best(EIGHT), one.best(PEERS)
        row = [task, ours or "", theirs or ""]
        for label, other in ((ours, theirs), ("rnpg", "sb3 trpo"), ("rtrpo", "sb3 trpo")):
            both = label in one.areas and other in one.areas
            row.append(show(difference(one.areas[label], one.areas[other])) if both else "")
        row.append(str(sum(cell.get("refused", 0) for cell in one.cells.values())))
        early = [
            sum(steps < STEPS for steps in cell.get("steps", [])) for cell in one.cells.values()
        ]
        rows.append([*row, str(sum(early))])
    columns = (
        "task",
        "best of ours",
        "better of SB3",
        "difference",
        "RNPG − SB3 TRPO",
        "RTRPO − SB3 TRPO",
        "refused updates",
        "runs that ended early",
    )
    lines += [*markdown(columns, rows, align="lllrrrrr"), "", "Pooled on the common scale:", ""]
    rows = []
    for group, tasks in (("not tuned on", UNFAMILIAR), ("all", TASKS)):
        some = [figures[task] for task in tasks]
        comparisons = [(name, other) for name in PAIRS for other in (PAIRS[name], CONTROLS[name])]
        for ours, theirs in [*comparisons, ("rppo", EARLIER)]:
            found = pooled(some, ours, theirs)
            if found is not None:
                count, estimate = found
                shown = f"{estimate.value:+.3f} ({estimate.low:+.3f} – {estimate.high:+.3f})"
                rows.append([f"{ours} − {theirs}", group, str(count), shown])
    lines += markdown(("comparison", "tasks", "number", "difference"), rows, align="llrr")
    return lines


def picture(data: dict[str, Any]) -> None:
    """Learning curves of what reuses beside Stable-Baselines3's, a panel for each task."""
    from recollect.report.plot import COLOURS, panels, save

    shown = ("sb3 ppo", "sb3 trpo", "rpg", "rnpg", "rtrpo", "rppo")
    there = [task for task in TASKS if Figures(task, data).cells]
    figure, axes = panels(-(-len(there) // 4), min(4, len(there)), width=4.0, height=3.0)
    for one in axes[len(there) :]:
        one.set_axis_off()
    steps = (np.arange(POINTS) + 0.5) * STEPS / POINTS / 1000
    for task, one in zip(there, axes, strict=False):
        cells = Figures(task, data).cells
        for label, colour in zip(shown, (COLOURS[0], COLOURS[7], *COLOURS[1:5]), strict=True):
            if label in cells:
                curves = np.array(cells[label]["curves"])
                error = curves.std(0, ddof=1) / len(curves) ** 0.5
                dashes = "--" if label in PEERS else "-"
                one.plot(steps, curves.mean(0), dashes, color=colour, label=label, linewidth=1.4)
                low, high = curves.mean(0) - error, curves.mean(0) + error
                one.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        one.set_title(task, fontsize=10)
        one.set_xlabel("thousand steps")
    axes[0].set_ylabel("return")
    axes[0].legend(fontsize=7)
    save(figure, DATA.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only cells whose name contains this text"
    )
    parser.add_argument(
        "--hours", type=float, default=np.inf, help="begin no cell after this many hours"
    )
    add_machines(parser)
    options = parser.parse_args()
    # What reuses and the peers first, so that a run that is stopped has something to show.
    first = ("random", "rnpg", "rtrpo", "rppo", *PEERS)
    order = dict.fromkeys((*first, *LABELS))
    names = [f"{task}: {label}" for label in order for task in TASKS]
    names += [f"{task}: {label}" for label in EIGHT for task in SPARSE]
    missing = [name for name in names if name not in kept(DATA) and options.only in name]
    keep = lambda name, figures: write(DATA, name, figures)
    on_machines(options, cell, missing, keep, options.hours)
    if kept(DATA):
        print(*report(kept(DATA)), sep="\n")
        picture(kept(DATA))


if __name__ == "__main__":
    main()
