"""Policies: what acts, and what is learned."""

from recollect.policies.categorical import Probabilities, Softmax, softmax_policy, tabular_direct_policy, tabular_softmax_policy
from recollect.policies.gaussian import Gaussian, gaussian_policy
from recollect.policies.networks import MLP, mlp, table
from recollect.policies.policy import AbstractHead, AbstractPolicy, Policy
from recollect.policies.shift import ShiftPolicy

__all__ = [
    "MLP",
    "AbstractHead",
    "AbstractPolicy",
    "Gaussian",
    "Policy",
    "Probabilities",
    "ShiftPolicy",
    "Softmax",
    "gaussian_policy",
    "mlp",
    "softmax_policy",
    "table",
    "tabular_direct_policy",
    "tabular_softmax_policy",
]
