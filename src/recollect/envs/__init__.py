"""Compiled environments, and their names."""

from recollect.checks import check_name
from recollect.envs.acrobot import Acrobot
from recollect.envs.base import AbstractEnv, AbstractOracle, Actions, Step
from recollect.envs.cartpole import CartPole
from recollect.envs.inverted_pendulum import InvertedPendulum
from recollect.envs.lqc import LQC
from recollect.envs.mountain_car import MountainCarContinuous
from recollect.envs.pendulum import Pendulum
from recollect.envs.tabular import Tabular, chain, garnet, gridworld, load_mdp

ENVIRONMENTS = {
    "CartPole-v1": CartPole,
    "Acrobot-v1": Acrobot,
    "Pendulum-v1": Pendulum,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "InvertedPendulum-v5": InvertedPendulum,
    "LQC": LQC,
    "Chain": chain,
    "Gridworld": gridworld,
    "Garnet": garnet,
}
"""What makes the environment of a name; each takes `max_steps`, the last four also `discount`."""


def make(name: str, **settings) -> AbstractEnv:
    """The environment called `name`, for example `make("CartPole-v1", max_steps=200)`, or the finite MDP in a file `NAME.npz`."""
    if name.endswith(".npz"):
        return load_mdp(name, **settings)
    check_name("env", name, ENVIRONMENTS)
    return ENVIRONMENTS[name](**settings)


__all__ = [
    "ENVIRONMENTS",
    "LQC",
    "AbstractEnv",
    "AbstractOracle",
    "Acrobot",
    "Actions",
    "CartPole",
    "InvertedPendulum",
    "MountainCarContinuous",
    "Pendulum",
    "Step",
    "Tabular",
    "chain",
    "garnet",
    "gridworld",
    "load_mdp",
    "make",
]
