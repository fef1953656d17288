"""What is compared: presets of ours, the same with a window of 1, and seeds of another library in processes of their own."""

import dataclasses
import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from typing import Any

VARIANTS = {
    "ppo": ("ppo", None),
    "rppo, window 1": ("rppo", 1),
    "rppo": ("rppo", None),
    "trpo": ("trpo", None),
    "rtrpo, window 1": ("rtrpo", 1),
    "rtrpo": ("rtrpo", None),
}
"""Presets, and the window that takes the place of their own."""


def variant(env: str, name: str, window: int | None):
    """The preset with that window, in the Fisher matrix as well."""
    from recollect.presets import preset

    chosen = preset(name, env)
    if window is None:
        return chosen
    narrow = {field: window for field in ("window", "fisher_window") if hasattr(chosen.algorithm, field)}
    return dataclasses.replace(chosen, algorithm=dataclasses.replace(chosen.algorithm, **narrow))


def trained(env, chosen, seeds: int | Sequence[int], **limits):
    """A run of what was chosen, without its progress and its warnings: refused updates are counted in the curves."""
    from recollect import train

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(env, chosen.algorithm, collector=chosen.collector, policy=chosen.policy, seeds=seeds, progress=False, **limits)


def in_processes(function: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    """A fresh process for each argument, as many at once as there are cores."""
    with multiprocessing.get_context("spawn").Pool(maxtasksperchild=1) as pool:
        return pool.map(function, arguments, chunksize=1)
