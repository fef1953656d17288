"""Compiled environments."""

from recollect.envs.base import AbstractEnv, AbstractOracle, Actions, Step
from recollect.envs.cartpole import CartPole
from recollect.envs.lqc import LQC
from recollect.envs.tabular import Tabular, chain, garnet, gridworld

__all__ = ["LQC", "AbstractEnv", "AbstractOracle", "Actions", "CartPole", "Step", "Tabular", "chain", "garnet", "gridworld"]
