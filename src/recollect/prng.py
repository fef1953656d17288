"""Random numbers cheap enough for half a million iterations of a problem with one parameter, and for one action at a time.

On CPUs two parts of JAX's normal draws are slow. It keeps the rounds of its generator in a loop; written out, the same Threefry (Salmon
et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") took a ninth of the time, with 13 rounds, the fewest
that those authors saw pass every test, instead of 20 even less. And XLA's inverse error function took 18 ns a
number, the polynomials of Giles (2012, "Approximating the erfinv function") take 1.

`unrolled` keeps all 20 rounds and so JAX's numbers to the bit; only the loop is gone.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Float, Key, PRNGKeyArray, UInt32

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_WORDS = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}
_CENTRE = (
    1.50140941,
    0.246640727,
    -0.00417768164,
    -0.00125372503,
    0.00021858087,
    -4.39150654e-06,
    -3.5233877e-06,
    3.43273939e-07,
    2.81022636e-08,
)
_TAIL = (
    2.83297682,
    1.00167406,
    0.00943887047,
    -0.0076224613,
    0.00573950773,
    -0.00367342844,
    0.00134934322,
    0.000100950558,
    -0.000200214257,
)


def fusing_key(seed: int) -> PRNGKeyArray:
    """A key of this generator. Its draws are fast when many small problems lie side by side, and slower to compile."""
    return jax.random.key(seed, impl=_FUSING)


def unrolled(keys: Key[Array, "*n"]) -> Key[Array, "*n"]:
    """The same keys for a generator that gives the same numbers sooner where few are drawn at a time, and takes longer to compile."""
    if jax.random.key_impl(keys) != "threefry2x32":
        return keys
    return jax.random.wrap_key_data(jax.random.key_data(keys), impl=_UNROLLED)


def normal(key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """Standard normal draws."""
    if jnp.result_type(float) != jnp.float32:
        return jax.random.normal(key, shape)
    return _normals(jax.random.key_data(key), lax.iota(jnp.uint32, math.prod(shape))).reshape(shape)


def _keys_last(function):
    """`function(keys, counters)` for arrays (2, key) and (block, key); under `vmap` every batch joins the key axis.

    One long last axis keeps vector units busy, where the few numbers of one small problem would not.
    """
    flat = jax.custom_batching.custom_vmap(function)

    @flat.def_vmap
    def _(size, batched, keys, counters):
        last = lambda x, is_batched: (
            jnp.moveaxis(x, 0, -1)
            if is_batched
            else jnp.broadcast_to(x[..., None], (*x.shape, size))
        )
        keys, counters = last(keys, batched[0]), last(counters, batched[1])
        out = flat(keys.reshape(2, -1), counters.reshape(len(counters), -1))
        return jnp.moveaxis(out.reshape(*out.shape[:-1], -1, size), -1, 0), True

    return lambda key, counters: flat(key[:, None], counters[:, None])[..., 0]


def _rounds(
    keys: UInt32[Array, "2 *key"], counters: UInt32[Array, "..."], count: int
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Both words of Threefry-2x32 of the blocks (0, counter)."""
    schedule = (keys[0], keys[1], keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    a, b = jnp.broadcast_to(schedule[0], counters.shape), counters + schedule[1]
    for i in range(count):
        turn = _ROTATIONS[i % 8]
        a = a + b
        b = ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn))) ^ a
        if i % 4 == 3:
            j = i // 4 + 1
            a, b = a + schedule[j % 3], b + schedule[(j + 1) % 3] + np.uint32(j)
    return a, b


def _threefry(
    keys: UInt32[Array, "2 key"], counters: UInt32[Array, "block key"]
) -> UInt32[Array, "block key"]:
    """The fewest rounds, both words of the result joined to one."""
    a, b = _rounds(keys, counters, 13)
    return a ^ b


def _gaussian(
    keys: UInt32[Array, "2 key"], counters: UInt32[Array, "block key"]
) -> Float[Array, "block key"]:
    """√2 erf⁻¹ of a number that is uniform in (−1, 1)."""
    odd = (_threefry(keys, counters) >> np.uint32(8)).astype(jnp.float32) * np.float32(
        2**-23
    ) + np.float32(2**-24 - 1)
    w = -jnp.log((1 - odd) * (1 + odd))
    polynomial = lambda coefficients, at: jnp.polyval(
        jnp.array(coefficients[::-1], jnp.float32), at, unroll=len(coefficients)
    )
    return (
        np.float32(2**0.5)
        * odd
        * jnp.where(w < 5, polynomial(_CENTRE, w - 2.5), polynomial(_TAIL, jnp.sqrt(w) - 3))
    )


def _once(function):
    """A branch, which XLA does not fuse with what comes after it: otherwise every use of a number would compute it again."""
    return lambda keys, counters: lax.cond(
        keys[0, 0] < keys[1, 0], function, lambda k, c: function(k[::-1], c), keys, counters
    )


_numbers, _normals = _keys_last(_once(_threefry)), _keys_last(_once(_gaussian))


@_keys_last
def _children(
    keys: UInt32[Array, "2 key"], counters: UInt32[Array, "block key"]
) -> UInt32[Array, "2 block key"]:
    """New keys by a light mixing: they only have to differ, as Threefry does the rest."""
    first = _mix(keys[0] + counters * np.uint32(0x9E3779B9))
    return jnp.stack([first, _mix(keys[1] ^ _mix(counters + np.uint32(0x85EBCA6B)))])


def _mix(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """A bijection of 32 bits in which every bit in moves every bit out."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def _bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]):
    count = math.prod(shape) * (2 if width == 64 else 1)
    bits = _numbers(key, lax.iota(jnp.uint32, count))
    if width == 64:
        high, low = bits.astype(jnp.uint64).reshape(2, *shape)
        return (high << np.uint64(32)) | low
    return bits.reshape(shape).astype(_WORDS[width])


def _split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "*n 2"]:
    return _children(key, lax.iota(jnp.uint32, math.prod(shape))).T.reshape(*shape, 2)


def _fold_in(key: UInt32[Array, "2"], data) -> UInt32[Array, "2"]:
    # Half of all counters away from those of `_split`.
    return _children(key, jnp.asarray(data, jnp.uint32).reshape(1) ^ np.uint32(0x80000000))[:, 0]


def _seed(seed) -> UInt32[Array, "2"]:
    return jnp.stack([jnp.zeros((), jnp.uint32), lax.convert_element_type(seed, jnp.uint32)])


_FUSING = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="fusing_threefry",
    tag="fuse",
)


def _jax_bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]):
    high, low = _rounds(key, lax.iota(jnp.uint32, math.prod(shape)).reshape(shape), 20)
    if width == 64:
        return (high.astype(jnp.uint64) << np.uint64(32)) | low
    return (high ^ low).astype(_WORDS[width])


def _jax_split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "*n 2"]:
    return jnp.stack(_rounds(key, lax.iota(jnp.uint32, math.prod(shape)).reshape(shape), 20), -1)


def _jax_fold_in(key: UInt32[Array, "2"], data) -> UInt32[Array, "2"]:
    return jnp.stack(_rounds(key, jnp.asarray(data).astype(jnp.uint32), 20))


_UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_jax_split,
    random_bits=_jax_bits,
    fold_in=_jax_fold_in,
    name="unrolled_threefry",
    tag="unroll",
)
