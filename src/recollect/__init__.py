"""Policy gradients that reuse the trajectories of past policies by importance sampling."""

__version__ = "0.1.0"

from recollect.advantages import Advantages
from recollect.algorithms import NPG, PG, RNPG, RPG, VNPG, VPG
from recollect.collect import Draws, Episodes, Steps
from recollect.envs import LQC, CartPole, Tabular, chain, garnet, gridworld, make
from recollect.policies import (
    AbstractPolicy,
    ShiftPolicy,
    gaussian_policy,
    softmax_policy,
    tabular_direct_policy,
    tabular_softmax_policy,
)
from recollect.project import Ball, Box, Simplex, Unconstrained
from recollect.solve import Solver
from recollect.train import Training, train
from recollect.weights import Weights

__all__ = [
    "LQC",
    "NPG",
    "PG",
    "RNPG",
    "RPG",
    "VNPG",
    "VPG",
    "AbstractPolicy",
    "Advantages",
    "Ball",
    "Box",
    "CartPole",
    "Draws",
    "Episodes",
    "ShiftPolicy",
    "Simplex",
    "Solver",
    "Steps",
    "Tabular",
    "Training",
    "Unconstrained",
    "Weights",
    "chain",
    "garnet",
    "gaussian_policy",
    "gridworld",
    "make",
    "softmax_policy",
    "tabular_direct_policy",
    "tabular_softmax_policy",
    "train",
]
