"""`recollect envs` and `recollect algorithms`: what there is to choose from."""

import gymnasium as gym
from rich.table import Table

from recollect.algorithms import ALGORITHMS
from recollect.cli.flags import Algorithms, Envs, parse
from recollect.cli.shared import console
from recollect.envs import ENVIRONMENTS
from recollect.run.presets import settings_for


def envs(flags: list[str], words: list[str]) -> int:
    """`recollect envs`."""
    del words
    asked, _ = parse(Envs, flags, "recollect envs")
    table = Table("name", "engine", "observation", "actions", "at most", "settings")
    for name, make in ENVIRONMENTS.items():
        env = make()
        limit = f"{env.max_steps} steps"
        size = str(env.observation_size)
        table.add_row(name, "compiled", size, str(env.actions), limit, settings_for(name))
    if asked.all:
        for name, spec in sorted(gym.registry.items()):
            if name not in ENVIRONMENTS:
                limit = "" if spec.max_episode_steps is None else f"{spec.max_episode_steps} steps"
                table.add_row(name, "gymnasium", "", "", limit, settings_for(name))
    out = console()
    out.print(table)
    if not asked.all:
        out.print(
            f"and {len({*gym.registry} - {*ENVIRONMENTS})} that Gymnasium knows (--all), "
            "MODULE:NAME, and finite MDPs as NAME.npz",
            soft_wrap=True,
        )
    return 0


def algorithms(flags: list[str], words: list[str]) -> int:
    """`recollect algorithms`."""
    del words
    parse(Algorithms, flags, "recollect algorithms")
    table = Table("name", "class", "window", "what it does")
    for name, make in ALGORITHMS.items():
        algorithm = make()
        about = (make.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, type(algorithm).__name__, str(algorithm.window), about)
    out = console()
    out.print(table)
    out.print("and FILE.py:NAME or MODULE:NAME, an algorithm of your own", soft_wrap=True)
    return 0
