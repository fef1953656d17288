"""Arrays and facts in one file, written so that no crash, bit or stranger can do harm by it.

A file is a stored zip of `manifest.json` (what is known, and the version of the format) and
`arrays.safetensors`. Its last 64 characters, the comment of the zip, are the SHA-256 of all bytes
before them, so that any damage is noticed. It appears under its name only when all of it is on
disk. Reading it runs no code and allocates no more than the file is long.

The arrays of a pytree have their paths as names, such as `['seeds'].state.policy.head.log_std`. To
read it back, the same pytree is made anew from its settings and filled; so new rules, policies and
algorithms need no code here.
"""

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

FORMAT = 1
"""Increased when files of an older format can no longer be read."""
MANIFEST = "manifest.json"
ARRAYS = "arrays.safetensors"
DIGEST = 64
"""Characters of a SHA-256."""
PART = ".part"
"""How files end that are being written, or were when a process was killed."""
LARGEST_MANIFEST = 16 * 2**20
"""Bytes of a manifest at most."""
Tree = TypeVar("Tree")


class CheckpointError(ValueError):
    """A file that is no checkpoint, is damaged, or does not fit; one sentence says which."""


def write(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write arrays and some facts; `path` holds either what it did or all of it.

    Args:
        path: of the file, which is replaced.
        arrays: by name, as `named_arrays` gives those of a pytree.
        facts: what JSON can hold.
    """
    manifest = json.dumps({"format": FORMAT, **facts}, indent=1).encode()
    contents = safetensors.numpy.save(dict(arrays))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in ((MANIFEST, manifest), (ARRAYS, contents)):
            # A fixed date, so that the same state gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
        archive.comment = b"0" * DIGEST
    body = buffer.getvalue()[:-DIGEST]
    replace(path, body + hashlib.sha256(body).hexdigest().encode())


def replace(path: Path, data: bytes) -> None:
    """Give a file new contents all at once: whoever reads it sees either the old or the new."""
    with _part(path, data) as part:
        os.replace(part, path)
    if hasattr(os, "O_DIRECTORY"):  # the new name itself, where a folder can be opened
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def create(path: Path, data: bytes) -> None:
    """Make a file with all of its contents at once.

    Raises:
        FileExistsError: if there is one of that name; of several that try at once, one succeeds.
    """
    with _part(path, data) as part:
        try:
            os.link(part, path)
        except FileExistsError:
            raise
        except OSError:  # a file system that has no second names for files
            with path.open("xb") as file:
                file.write(data)


@contextlib.contextmanager
def _part(path: Path, data: bytes) -> Iterator[Path]:
    """A file beside `path` with all of the data on disk, under a name that ends with the context.

    A process that is killed leaves it there; see `PART`.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays by path, and the facts.

    Args:
        path: of a file that `write` has made.

    Raises:
        CheckpointError: if it is damaged, no checkpoint, or of a newer format.
        OSError: if it cannot be read.
    """
    data = path.read_bytes()
    body, digest = data[:-DIGEST], data[-DIGEST:]
    if not data.startswith(b"PK"):
        raise CheckpointError(f"{path} is no checkpoint.")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise CheckpointError(f"{path} is damaged: its contents do not have the checksum it names.")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: _member(archive, name) for name in (MANIFEST, ARRAYS)}
        manifest = json.loads(members[MANIFEST])
        arrays = safetensors.numpy.load(members[ARRAYS])
    except (zipfile.BadZipFile, SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is no checkpoint: {error}.") from None
    version = manifest.pop("format", None) if isinstance(manifest, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise CheckpointError(f"{path} is no checkpoint: its manifest names no format.")
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and this version of recollect reads up to {FORMAT}; "
            "update recollect."
        )
    return arrays, manifest


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member, which is stored as it is: nothing grows when it is read."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"{name} is compressed")
    if name == MANIFEST and info.file_size > LARGEST_MANIFEST:
        raise ValueError(f"{name} is larger than {LARGEST_MANIFEST} bytes")
    return archive.read(info)


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every array of a pytree by its path; random keys as the numbers that they consist of."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))
    return {jax.tree_util.keystr(path): _numbers(leaf) for path, leaf in leaves}


def filled(tree: Tree, arrays: Mapping[str, np.ndarray], prefix: str = "") -> Tree:
    """The pytree with other arrays in the places of its own.

    Args:
        tree: whose arrays, or shapes in their place, say what is expected.
        arrays: by path; those of other paths are left alone.
        prefix: path of the tree itself.

    Raises:
        CheckpointError: if an array is missing or has another shape or type.
    """

    def fill(path, leaf: Any):
        if not eqx.is_array(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        name = prefix + jax.tree_util.keystr(path)
        expected = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        if name not in arrays:
            raise CheckpointError(f"the checkpoint does not fit: it has no {name}.")
        found = arrays[name]
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise CheckpointError(
                f"the checkpoint does not fit: {name} is {found.dtype}{list(found.shape)} there, "
                f"and {expected.dtype}{list(expected.shape)} is expected."
            )
        if _is_key(leaf):
            kind = jax.random.key_impl(leaf)  # pyright: ignore[reportArgumentType]  has a dtype
            return jax.random.wrap_key_data(jnp.asarray(found), impl=kind)
        return found.copy() if isinstance(leaf, np.ndarray) else jnp.asarray(found)

    return jax.tree_util.tree_map_with_path(fill, tree)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _numbers(leaf: Any) -> np.ndarray:
    """An array as NumPy's, in one piece; random keys as the numbers that they consist of."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf, order="C")
