"""The algorithms: a window of one is the vanilla method, a longer one reuses."""

from recollect.algorithms.base import AbstractAlgorithm, Info, State
from recollect.algorithms.npg import NPG, RNPG, VNPG
from recollect.algorithms.pg import PG, RPG, VPG
from recollect.algorithms.ppo import PPO, RPPO
from recollect.algorithms.trpo import RTRPO, TRPO
from recollect.refusals import REFUSALS

ALGORITHMS = {
    "vpg": VPG,
    "rpg": RPG,
    "vnpg": VNPG,
    "rnpg": RNPG,
    "trpo": TRPO,
    "rtrpo": RTRPO,
    "ppo": PPO,
    "rppo": RPPO,
}
"""Named constructors, as the command line knows them."""

__all__ = [
    "ALGORITHMS",
    "NPG",
    "PG",
    "PPO",
    "REFUSALS",
    "RNPG",
    "RPG",
    "RPPO",
    "RTRPO",
    "TRPO",
    "VNPG",
    "VPG",
    "AbstractAlgorithm",
    "Info",
    "State",
]
