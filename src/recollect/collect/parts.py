"""What some copies did in one iteration, and how the parts of all copies become a batch.

A part holds NumPy's arrays alone and travels between processes. Log-probabilities are filled in
where the parts come together, for all copies at once by the policies that acted: so a batch is the
same bit for bit, however its copies were divided.
"""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from recollect.batch import Batch
from recollect.collect.rollout import Rollout, with_log_probs
from recollect.devices import at_full_precision
from recollect.policies import AbstractPolicy


class Ongoing(eqx.Module):
    """What goes on from one iteration to the next, beside the environments themselves.

    The axis of copies runs over those of the first seed, of the second, and so on. In NumPy's
    arrays, since JAX's have single precision.
    """

    times: Int[np.ndarray, " copy"]
    """Steps since each copy's episode began."""
    totals: Float[np.ndarray, " copy"]
    """Sums of the rewards of these steps."""
    dropped: Int[np.ndarray, " copy"]
    """Episodes that were left out because the simulation diverged, since the start of the run."""
    seeds: Int[np.ndarray, " copy"]
    """From which each copy's episode began."""
    observations: Float[np.ndarray, "copy feature"]
    """What the policy acts on next."""
    actions: Shaped[np.ndarray, "taken *action"]
    """Those since each copy's episode began, one copy after another. Nothing for whole episodes,
    which begin anew in every iteration, and for copies that reset themselves."""

    def by_copy(self) -> list[np.ndarray]:
        """The actions since each copy's episode began."""
        times = self.times if len(self.actions) else np.zeros(self.times.size, int)
        return np.split(self.actions, np.cumsum(times)[:-1])

    def of(self, places: np.ndarray) -> "Ongoing":
        """What goes on in some of the copies."""
        actions = self.by_copy()
        return Ongoing(
            times=self.times[places],
            totals=self.totals[places],
            dropped=self.dropped[places],
            seeds=self.seeds[places],
            observations=self.observations[places],
            actions=np.concatenate([actions[place] for place in places]),
        )


@dataclasses.dataclass(frozen=True)
class Part:
    """What some copies did in one iteration; arrays begin with the axis of copies."""

    arrays: dict[str, np.ndarray]
    """Fields of the batch by name, with the axes copy, time; without log-probabilities."""
    returns: Float[np.ndarray, "copy time"]
    """Of the episode that ended in this step, NaN if none did."""
    lengths: Float[np.ndarray, "copy time"]
    figures: dict[str, Float[np.ndarray, "copy time"]]
    """What the environment said of that episode in its infos, by name."""
    steps: Int[np.ndarray, " copy"]
    """Taken in the environment."""
    ongoing: Ongoing

    @classmethod
    def joined(cls, parts: Sequence["Part"]) -> "Part":
        """The parts of consecutive copies as one."""
        join = lambda get: np.concatenate([get(part) for part in parts])
        fields = [field.name for field in dataclasses.fields(Ongoing)]
        first = parts[0]
        return cls(
            arrays={name: join(lambda part, name=name: part.arrays[name]) for name in first.arrays},
            returns=join(lambda part: part.returns),
            lengths=join(lambda part: part.lengths),
            figures={
                name: join(lambda part, name=name: part.figures[name]) for name in first.figures
            },
            steps=join(lambda part: part.steps),
            ongoing=Ongoing(
                **{
                    name: join(lambda part, name=name: getattr(part.ongoing, name))
                    for name in fields
                }
            ),
        )

    def rollout(self, policies: AbstractPolicy, seeds: int, acted: int) -> Rollout:
        """A batch of every seed; all arrays begin with the axis of seeds.

        Args:
            policies: of all seeds, stacked, that acted.
            seeds: how many.
            acted: how many updates these policies had had.
        """
        by_seed = lambda values: jnp.asarray(values.reshape(seeds, -1, *values.shape[1:]))
        arrays = {name: by_seed(values) for name, values in self.arrays.items()}
        batch = Batch(**arrays, log_probs=jnp.zeros_like(arrays["rewards"]))
        return Rollout(
            batch=fill_log_probs(policies, batch),
            returns=_in_order(self.returns, seeds),
            lengths=_in_order(self.lengths, seeds),
            figures={name: _in_order(values, seeds) for name, values in self.figures.items()},
            environment_steps=jnp.asarray(self.steps.reshape(seeds, -1).sum(1), jnp.int32),
            iteration=jnp.full(seeds, acted, jnp.int32),
        )


def _in_order(values: Float[np.ndarray, "copy time"], seeds: int) -> Array:
    """Figures of episodes, by seed and in the order in which episodes ended."""
    by_seed = values.reshape(seeds, -1, values.shape[1])
    return jnp.asarray(np.moveaxis(by_seed, 2, 1).reshape(seeds, -1))


@eqx.filter_jit
@at_full_precision
def fill_log_probs(policies: AbstractPolicy, batches: Batch) -> Batch:
    """The batches of all seeds with the log-probabilities of the policies that acted in them."""
    return eqx.filter_vmap(with_log_probs, in_axes=(eqx.if_array(0), 0))(policies, batches)


def empty_rollout(
    shapes: dict[str, jax.ShapeDtypeStruct],
    copies: int,
    horizon: int,
    keywords: tuple[str, ...],
) -> Rollout:
    """A rollout of one seed with nothing in it.

    Args:
        shapes: of one entry of each field of the batch.
        copies: of the environment.
        horizon: steps of each.
        keywords: names of what environments say of episodes.
    """
    zeros = lambda x: jnp.zeros((copies, horizon, *x.shape), x.dtype)
    nothing = jnp.full(copies * horizon, jnp.nan, jnp.float32)
    return Rollout(
        batch=Batch(**{field: zeros(shape) for field, shape in shapes.items()}),
        returns=nothing,
        lengths=nothing,
        environment_steps=jnp.zeros((), jnp.int32),
        iteration=jnp.zeros((), jnp.int32),
        figures=dict.fromkeys(keywords, nothing),
    )
