"""Policies π_θ(a|s): networks, distributions over actions, and policies made of both."""

from recollect.policies.categorical import (
    GridSoftmax,
    MultiSoftmax,
    Probabilities,
    Softmax,
    grid_softmax_policy,
    multi_softmax_policy,
    softmax_policy,
    tabular_direct_policy,
    tabular_softmax_policy,
)
from recollect.policies.gaussian import (
    Gaussian,
    SquashedGaussian,
    gaussian_policy,
    squashed_gaussian_policy,
)
from recollect.policies.networks import MLP, mlp, table
from recollect.policies.policy import AbstractHead, AbstractPolicy, Policy
from recollect.policies.shift import ShiftPolicy

__all__ = [
    "MLP",
    "AbstractHead",
    "AbstractPolicy",
    "Gaussian",
    "GridSoftmax",
    "MultiSoftmax",
    "Policy",
    "Probabilities",
    "ShiftPolicy",
    "Softmax",
    "SquashedGaussian",
    "gaussian_policy",
    "grid_softmax_policy",
    "mlp",
    "multi_softmax_policy",
    "softmax_policy",
    "squashed_gaussian_policy",
    "table",
    "tabular_direct_policy",
    "tabular_softmax_policy",
]
