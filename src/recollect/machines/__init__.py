"""Where independent work is done: in processes of this machine, or on a Ray cluster.

Both map a function over tasks and hold actors, objects that live in processes of their own and
answer one call after another. A call to an actor of this machine takes some hundred microseconds,
one to Ray's about two milliseconds; starting an actor takes seconds, as it imports JAX.
"""

from recollect.machines.base import AbstractActor, AbstractMachines, AbstractSession, ActorDied
from recollect.machines.kept import File, map_kept, tasks_kept
from recollect.machines.local import Local
from recollect.machines.on_ray import Ray
from recollect.machines.tasks import map_tasks, tasks_at_once, tasks_on, worth_sending

__all__ = [
    "AbstractActor",
    "AbstractMachines",
    "AbstractSession",
    "ActorDied",
    "File",
    "Local",
    "Ray",
    "map_kept",
    "map_tasks",
    "tasks_at_once",
    "tasks_kept",
    "tasks_on",
    "worth_sending",
]
