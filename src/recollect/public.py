"""The names that `from recollect import …` offers."""

from recollect.algorithms import NPG, PG, PPO, RNPG, RPG, RPPO, RTRPO, TRPO, VNPG, VPG
from recollect.collect.compiled import Draws, Episodes, Steps
from recollect.envs import (
    LQC,
    Acrobot,
    CartPole,
    EnvironmentFailure,
    InvertedPendulum,
    MountainCarContinuous,
    Pendulum,
    Tabular,
    chain,
    garnet,
    gridworld,
    host,
    make,
)
from recollect.estimate.advantages import Advantages
from recollect.estimate.critic import Critic
from recollect.memory.weights import Weights
from recollect.policies import (
    AbstractPolicy,
    Gaussian,
    Policy,
    ShiftPolicy,
    Softmax,
    gaussian_policy,
    grid_softmax_policy,
    multi_softmax_policy,
    softmax_policy,
    squashed_gaussian_policy,
    tabular_direct_policy,
    tabular_softmax_policy,
)
from recollect.policies.architecture import Architecture
from recollect.policies.normaliser import Normaliser
from recollect.run.presets import Preset, preset
from recollect.run.train import Training, train
from recollect.step.project import Ball, Box, Simplex, Unconstrained
from recollect.step.solve import Solver

__all__ = [
    "LQC",
    "NPG",
    "PG",
    "PPO",
    "RNPG",
    "RPG",
    "RPPO",
    "RTRPO",
    "TRPO",
    "VNPG",
    "VPG",
    "AbstractPolicy",
    "Acrobot",
    "Advantages",
    "Architecture",
    "Ball",
    "Box",
    "CartPole",
    "Critic",
    "Draws",
    "EnvironmentFailure",
    "Episodes",
    "Gaussian",
    "InvertedPendulum",
    "MountainCarContinuous",
    "Normaliser",
    "Pendulum",
    "Policy",
    "Preset",
    "ShiftPolicy",
    "Simplex",
    "Softmax",
    "Solver",
    "Steps",
    "Tabular",
    "Training",
    "Unconstrained",
    "Weights",
    "chain",
    "garnet",
    "gaussian_policy",
    "grid_softmax_policy",
    "gridworld",
    "host",
    "make",
    "multi_softmax_policy",
    "preset",
    "softmax_policy",
    "squashed_gaussian_policy",
    "tabular_direct_policy",
    "tabular_softmax_policy",
    "train",
]
