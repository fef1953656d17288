"""The algorithms: a window of one is the vanilla method, a longer one reuses."""

from recollect.algorithms.base import REFUSALS, AbstractAlgorithm, Info, State
from recollect.algorithms.npg import NPG, RNPG, VNPG
from recollect.algorithms.pg import PG, RPG, VPG

ALGORITHMS = {"vpg": VPG, "rpg": RPG, "vnpg": VNPG, "rnpg": RNPG}
"""Named constructors, as the command line knows them."""

__all__ = ["ALGORITHMS", "NPG", "PG", "REFUSALS", "RNPG", "RPG", "VNPG", "VPG", "AbstractAlgorithm", "Info", "State"]
