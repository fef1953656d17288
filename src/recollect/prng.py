"""Faster random numbers on CPUs, where few are drawn at a time.

This matters for half a million iterations of a problem with one parameter, and for drawing one
action at a time. Two parts of JAX's normal draws are slow there:

- JAX runs the rounds of its generator, Threefry, in a loop. Unrolled, the same generator took a
  ninth of the time, and less with 13 rounds instead of 20. Thirteen are the fewest that passed all
  tests of its authors (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
- XLA's inverse error function took 18 ns a number; the polynomials of Giles (2012, "Approximating
  the erfinv function") take 1 ns.

`fusing_key` and `normal` make both changes, and give other numbers than JAX. `unrolled` keeps all
20 rounds, and so gives the numbers of JAX to the bit.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Float, Key, PRNGKeyArray, UInt32

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
"""Threefry-2x32's rotation of each round, repeated every eight rounds."""
_WORDS = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}
# Giles' single-precision coefficients, lowest power first: for w < 5, and for the tail.
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
    """A key of the fast generator with 13 rounds.

    It is fast where many small problems are computed side by side (`vmap`), and slow to compile.

    Args:
        seed: any whole number of 32 bits.

    Example:
        >>> import jax
        >>> from recollect.prng import fusing_key
        >>> jax.random.key_data(fusing_key(7)).tolist()
        [0, 7]
    """
    return jax.random.key(seed, impl=_FUSING)


def unrolled(keys: Key[Array, "*n"]) -> Key[Array, "*n"]:
    """The same keys for a generator that gives the same numbers, without a loop.

    It is faster where few numbers are drawn at a time, and takes longer to compile. Keys of other
    generators than JAX's default are returned unchanged.

    Example:
        >>> import jax
        >>> from recollect.prng import unrolled
        >>> key = jax.random.key(7)
        >>> bool(jax.random.bits(unrolled(key)) == jax.random.bits(key))
        True
    """
    if jax.random.key_impl(keys) != "threefry2x32":
        return keys
    return jax.random.wrap_key_data(jax.random.key_data(keys), impl=_UNROLLED)


def normal(key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """Standard normal draws of the default floating-point type.

    In single precision they come from Threefry with 13 rounds and Giles' polynomials, also for keys
    of JAX's own generator; in double precision from `jax.random.normal`.

    Example:
        >>> import jax
        >>> from recollect.prng import normal
        >>> normal(jax.random.key(0), (2, 3)).shape
        (2, 3)
    """
    if jnp.result_type(float) != jnp.float32:
        return jax.random.normal(key, shape)
    return _normals(jax.random.key_data(key), lax.iota(jnp.uint32, math.prod(shape))).reshape(shape)


def _keys_last(function):
    """`function(keys, counters)` of arrays (2, key) and (block, key), as a function of one key.

    Under `vmap` every batch axis is merged into the last axis, `key`. One long last axis fills the
    vector units, which the few numbers of one small problem would not.
    """
    flat = jax.custom_batching.custom_vmap(function)

    @flat.def_vmap
    def _(size, batched, keys, counters):
        last = lambda x, is_batched: (
            jnp.moveaxis(x, 0, -1)
            if is_batched
            else jnp.broadcast_to(x[..., None], (*x.shape, size))
        )
        keys = last(keys, batched[0])
        counters = last(counters, batched[1])
        out = flat(keys.reshape(2, -1), counters.reshape(len(counters), -1))
        return jnp.moveaxis(out.reshape(*out.shape[:-1], -1, size), -1, 0), True

    return lambda key, counters: flat(key[:, None], counters[:, None])[..., 0]


def _rounds(
    keys: UInt32[Array, "2 *key"], counters: UInt32[Array, "..."], count: int
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Both words of Threefry-2x32, with `count` rounds, of the blocks (0, counter)."""
    # The constant is Threefry's own, of the key schedule.
    schedule = (keys[0], keys[1], keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    a = jnp.broadcast_to(schedule[0], counters.shape)
    b = counters + schedule[1]
    for i in range(count):
        turn = _ROTATIONS[i % 8]
        a = a + b
        b = ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn))) ^ a
        if i % 4 == 3:
            j = i // 4 + 1
            a = a + schedule[j % 3]
            b = b + schedule[(j + 1) % 3] + np.uint32(j)
    return a, b


def _threefry(
    keys: UInt32[Array, "2 key"], counters: UInt32[Array, "block key"]
) -> UInt32[Array, "block key"]:
    """Threefry with 13 rounds, both words of the result combined into one."""
    a, b = _rounds(keys, counters, 13)
    return a ^ b


def _gaussian(
    keys: UInt32[Array, "2 key"], counters: UInt32[Array, "block key"]
) -> Float[Array, "block key"]:
    """√2 erf⁻¹(x) with x uniform in (−1, 1), by two polynomials in w = −log(1 − x²)."""
    bits = _threefry(keys, counters) >> np.uint32(8)
    # The 2²⁴ midpoints of equal cells: symmetric about 0, which is none of them, and never ±1.
    x = bits.astype(jnp.float32) * np.float32(2**-23) + np.float32(2**-24 - 1)
    w = -jnp.log((1 - x) * (1 + x))
    polynomial = lambda coefficients, at: jnp.polyval(
        jnp.array(coefficients[::-1], jnp.float32), at, unroll=len(coefficients)
    )
    scaled = np.float32(2**0.5) * x
    return scaled * jnp.where(
        w < 5, polynomial(_CENTRE, w - 2.5), polynomial(_TAIL, jnp.sqrt(w) - 3)
    )


def _once(function):
    """`function` inside a branch, which XLA does not fuse with the code that uses its result.

    Fused, every use of a random number would compute it again. The two branches differ, so that the
    compiler cannot merge them: the second swaps the words of the keys. The first key decides for
    all, so the numbers of a key depend on the batch in which they are drawn.
    """
    return lambda keys, counters: lax.cond(
        keys[0, 0] < keys[1, 0], function, lambda k, c: function(k[::-1], c), keys, counters
    )


_numbers = _keys_last(_once(_threefry))
_normals = _keys_last(_once(_gaussian))


@_keys_last
def _children(
    keys: UInt32[Array, "2 key"], counters: UInt32[Array, "block key"]
) -> UInt32[Array, "2 block key"]:
    """New keys by a cheap hash: they only have to differ, as Threefry makes the numbers random."""
    first = _mix(keys[0] + counters * np.uint32(0x9E3779B9))
    return jnp.stack([first, _mix(keys[1] ^ _mix(counters + np.uint32(0x85EBCA6B)))])


def _mix(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """A bijective hash of 32 bits; every bit of the input affects every bit of the output."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def _bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]):
    """Random words of `width` bits."""
    count = math.prod(shape) * (2 if width == 64 else 1)
    bits = _numbers(key, lax.iota(jnp.uint32, count))
    if width == 64:
        high, low = bits.astype(jnp.uint64).reshape(2, *shape)
        return (high << np.uint64(32)) | low
    return bits.reshape(shape).astype(_WORDS[width])


def _split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "*n 2"]:
    return _children(key, lax.iota(jnp.uint32, math.prod(shape))).T.reshape(*shape, 2)


def _fold_in(key: UInt32[Array, "2"], data) -> UInt32[Array, "2"]:
    # With the top bit flipped, so that folding in a small number is not a key of `_split`.
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


# The same three functions as JAX computes them for `threefry2x32`, to the bit.


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
