"""A finite MDP from a NumPy archive, which may be damaged or come from someone else.

The first bytes of each array give its shape. Shapes are compared with each other and with the sizes
that the archive declares before any array is loaded, so that no file takes more memory than an MDP
of its shapes needs. Nothing is unpickled.
"""

import dataclasses
import io
import math
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from recollect.envs.tabular import Tabular

FIELDS = ("transitions", "rewards", "initial", "discount")
HEADER_BYTES = 4096
"""How much of an array is read to find its shape; NumPy writes 128 bytes before the numbers."""
MOST_COMPRESSION = 1032
"""No deflated stream grows by more than this factor."""
REMEDY = "write it with numpy.savez('my.npz', transitions=..., rewards=...)"


class _Malformed(ValueError):
    """Raised where this module knows what is wrong with the file, with a message for the user."""


@dataclasses.dataclass(frozen=True)
class _Header:
    """What the header of an array declares."""

    member: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype
    length: int
    """Size of the header in bytes; the numbers follow it."""

    @property
    def size(self) -> int:
        """Bytes that an array of this shape takes in the archive."""
        return self.length + math.prod(self.shape) * self.dtype.itemsize


def load_mdp(path: str | Path, **settings) -> Tabular:
    """Load a finite MDP from a file written by `numpy.savez` or `numpy.savez_compressed`.

    Args:
        path: a file with the arrays `transitions` (state, action, next state) and `rewards` (state,
            action). The arrays `initial` (state) and `discount` are optional; without them the
            first state is uniform and γ = 0.9. Other arrays are ignored.
        settings: arguments of `Tabular` that take precedence over the file: `initial`, `discount`
            and `max_steps`.

    Raises:
        ValueError: if the file does not hold an MDP, with one sentence that says why.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from recollect.envs import chain, load_mdp
        >>> mdp = chain(length=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "chain.npz")
        ...     np.savez(path, transitions=mdp.transitions, rewards=mdp.rewards)
        ...     loaded = load_mdp(path, max_steps=20)
        >>> loaded.observation_size, loaded.discount, loaded.max_steps
        (4, 0.9, 20)
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{str(path)!r} is not a file; {REMEDY}.")
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = _load(archive, path.stat().st_size)
    except _Malformed as error:
        raise ValueError(f"{str(path)!r}: {error}.") from None
    except Exception as error:  # zipfile and zlib raise a dozen kinds for damaged archives
        message = f"{type(error).__name__}: {error}".rstrip(". ").replace("\n", " ")
        raise ValueError(f"{str(path)!r} cannot be read ({message}); {REMEDY}.") from error
    states = len(arrays["rewards"])
    initial = arrays.get("initial", np.full(states, 1 / states))
    from_file = dict(initial=initial, discount=float(arrays.get("discount", 0.9)))
    return Tabular(arrays["transitions"], arrays["rewards"], **{**from_file, **settings})


def _load(archive: zipfile.ZipFile, size: int) -> dict[str, np.ndarray]:
    """The arrays of an archive of `size` bytes, after all headers have been checked."""
    headers: dict[str, _Header] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name not in FIELDS or name == member.filename:
            continue
        if name in headers:
            raise _Malformed(f"{name} is there twice; {REMEDY}")
        headers[name] = _header(archive, member, name)
    for name in ("transitions", "rewards"):
        if name not in headers:
            members = ", ".join(archive.namelist()[:5]) or "nothing"
            raise _Malformed(f"no array {name!r} but {members}; {REMEDY}")
    _check_shapes(headers)
    for name, header in headers.items():
        packed = header.member.compress_size
        unpacked = header.member.file_size
        # A size that cannot be true could make reading it allocate more than the file justifies.
        if unpacked != header.size or packed > size or unpacked > MOST_COMPRESSION * packed:
            raise _Malformed(
                f"{name} needs {header.size} bytes for its shape {header.shape}, and has "
                f"{unpacked}, packed in {packed}; the file is damaged, {REMEDY}"
            )
    return {name: _read(archive, header.member) for name, header in headers.items()}


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> _Header:
    if member.flag_bits & 1:
        raise _Malformed(f"{name} is encrypted; {REMEDY}")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _Malformed(f"{name} is compressed in a way that NumPy does not use; {REMEDY}")
    with archive.open(member) as file:
        start = io.BytesIO(file.read(HEADER_BYTES))
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        shape, _, dtype = readers[npy.read_magic(start)](start)
    except Exception as error:  # NumPy's message would not help someone with a wrong file
        raise _Malformed(f"{name} does not begin as an array does; {REMEDY}") from error
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise _Malformed(f"{name} holds values of type {dtype}; give real numbers")
    return _Header(member, shape, dtype, start.tell())


def _check_shapes(headers: dict[str, _Header]) -> None:
    shape = headers["rewards"].shape
    if len(shape) != 2 or min(shape) < 1:
        raise _Malformed(f"rewards has shape {shape}; give one for each (state, action)")
    states, actions = shape
    expected = dict(transitions=(states, actions, states), initial=(states,), discount=())
    for name, right in expected.items():
        if name in headers and headers[name].shape != right:
            wrong = headers[name].shape
            raise _Malformed(f"{name} has shape {wrong}; with rewards of {shape} give {right}")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    # zipfile compares the checksum when the last byte is read, which this does.
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)
