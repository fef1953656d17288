"""Faster random numbers on CPUs, where few are drawn at a time.

This matters for half a million iterations of a problem with one parameter, and for drawing one
action at a time. The generator is JAX's own, Threefry with 20 rounds, to the bit. Two parts of
JAX's normal draws are slow there:

- JAX runs the rounds of Threefry in a loop. Unrolled, it took a ninth of the time.
- XLA's inverse error function took 18 ns a number; the polynomials of Giles (2012, "Approximating
  the erfinv function") take 1 ns.

`unrolled` and `fusing_key` change the first, `normal` both.
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
    """The key of a seed for many small problems that are computed side by side (`vmap`).

    It draws the numbers of `jax.random.key(seed)`, and is slow to compile.

    Args:
        seed: any whole number of 32 bits.

    Example:
        >>> import jax
        >>> from recollect.prng import fusing_key
        >>> bool(jax.random.bits(fusing_key(7)) == jax.random.bits(jax.random.key(7)))
        True
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

    In single precision they come from Giles' polynomials, in double precision from
    `jax.random.normal`.

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


def _threefry(
    keys: UInt32[Array, "2 *key"], counters: UInt32[Array, "..."]
) -> UInt32[Array, "2 ..."]:
    """Both words of Threefry-2x32 of the blocks (0, counter), with 20 rounds."""
    # The constant is Threefry's own, of the key schedule.
    schedule = (keys[0], keys[1], keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    a = jnp.broadcast_to(schedule[0], counters.shape)
    b = counters + schedule[1]
    for i in range(20):
        turn = _ROTATIONS[i % 8]
        a = a + b
        b = ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn))) ^ a
        if i % 4 == 3:
            j = i // 4 + 1
            a = a + schedule[j % 3]
            b = b + schedule[(j + 1) % 3] + np.uint32(j)
    return jnp.stack([a, b])


def _gaussian(
    keys: UInt32[Array, "2 key"], counters: UInt32[Array, "block key"]
) -> Float[Array, "block key"]:
    """√2 erf⁻¹(x) with x uniform in (−1, 1), by two polynomials in w = −log(1 − x²)."""
    high, low = _threefry(keys, counters)
    bits = (high ^ low) >> np.uint32(8)
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

    Fused, every use of a random number would compute it again. The branch is always taken, which
    the compiler does not see.
    """

    def branch(keys, counters):
        shape = jax.eval_shape(function, keys, counters)
        nothing = lambda *_: jnp.zeros(shape.shape, shape.dtype)
        return lax.cond(keys[0, 0] | 1 != 0, function, nothing, keys, counters)

    return branch


_normals = _keys_last(_once(_gaussian))


def _implementation(name: str, tag: str, blocks):
    """Threefry as JAX has it, from a function of a key and counters that gives both words."""

    def counters(shape: tuple[int, ...]) -> UInt32[Array, " n"]:
        return lax.iota(jnp.uint32, math.prod(shape))

    def seed(seed) -> UInt32[Array, "2"]:
        return jnp.stack([jnp.zeros((), jnp.uint32), lax.convert_element_type(seed, jnp.uint32)])

    def random_bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]):
        high, low = blocks(key, counters(shape)).reshape(2, *shape)
        if width == 64:
            return (high.astype(jnp.uint64) << np.uint64(32)) | low
        return (high ^ low).astype(_WORDS[width])

    def split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "*n 2"]:
        return blocks(key, counters(shape)).T.reshape(*shape, 2)

    def fold_in(key: UInt32[Array, "2"], data) -> UInt32[Array, "2"]:
        return blocks(key, jnp.asarray(data).astype(jnp.uint32).reshape(1))[:, 0]

    return define_prng_impl(
        key_shape=(2,),
        seed=seed,
        split=split,
        random_bits=random_bits,
        fold_in=fold_in,
        name=name,
        tag=tag,
    )


_FUSING = _implementation("fusing_threefry", "fuse", _keys_last(_once(_threefry)))
_UNROLLED = _implementation("unrolled_threefry", "unroll", _threefry)
