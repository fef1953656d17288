"""Checkpoints: what is read is what was written, and nothing else is ever taken for it."""

import hashlib
import io
import json
import os
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_policy

from recollect.run import checkpoint
from recollect.run.checkpoint import CheckpointError, filled, named_arrays, read, write

KEY = jax.random.key(3)


def state():
    """A pytree with all that a run's state may hold."""
    return dict(
        policy=random_policy(KEY),
        window=jnp.arange(24.0).reshape(2, 3, 4),
        counts=np.array([1, 2**40]),
        mask=jnp.array([True, False]),
        empty=jnp.zeros((0, 3)),
        key=KEY,
        words="static",
        nothing=None,
    )


def zeros(tree):
    """The same structure with other numbers."""
    blank = lambda x: jnp.zeros_like(x) if isinstance(x, jax.Array) else np.zeros_like(x)
    kept = ("key", "words", "nothing")
    other = {
        name: part if name in kept else jax.tree.map(blank, part) for name, part in tree.items()
    }
    return {**other, "key": jax.random.key(9)}


def assert_same(found, expected):
    one, other = named_arrays(found), named_arrays(expected)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])


def test_what_is_read_is_what_was_written(tmp_path):
    path = tmp_path / "run.zip"
    tree = state()
    write(path, named_arrays(tree), {"iteration": 7, "names": ["ε", None]})
    arrays, facts = read(path)
    assert facts == {"iteration": 7, "names": ["ε", None]}
    found = filled(zeros(tree), arrays)
    assert_same(found, tree)
    assert found["words"] == "static"
    assert isinstance(found["counts"], np.ndarray)
    np.testing.assert_array_equal(jax.random.bits(found["key"], (4,)), jax.random.bits(KEY, (4,)))
    first = path.read_bytes()
    write(path, named_arrays(tree), facts)
    assert path.read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == ["run.zip"]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_every_damage_is_noticed(tmp_path):
    path = tmp_path / "run.zip"
    write(path, named_arrays(state()), {"iteration": 7})
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    for place in draw.integers(8 * len(whole), size=300):
        spoiled = bytearray(whole)
        spoiled[place // 8] ^= 1 << (place % 8)
        path.write_bytes(spoiled)
        with pytest.raises(CheckpointError, match=r"run\.zip is (damaged|no checkpoint)"):
            read(path)
    for length in [0, 1, 63, 64, 65, *draw.integers(len(whole), size=60)]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"run\.zip is (damaged|no checkpoint)"):
            read(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(CheckpointError, match="is damaged"):
        read(path)


def sealed(members, method=zipfile.ZIP_STORED):
    """A file with a right checksum and any contents."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = b"0" * 64
    body = buffer.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def header(text):
    return len(text).to_bytes(8, "little") + text


FINE = json.dumps({"format": 1}).encode()
ONE = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
HUGE = json.dumps({"x": {"dtype": "F32", "shape": [10**15], "data_offsets": [0, 8]}}).encode()
MALICIOUS = {
    "nothing inside": {},
    "no arrays": {"manifest.json": FINE},
    "no manifest": {"arrays.safetensors": header(ONE) + bytes(8)},
    "a manifest that is no JSON": {"manifest.json": b"{", "arrays.safetensors": header(b"{}")},
    "a manifest that is a list": {"manifest.json": b"[]", "arrays.safetensors": header(b"{}")},
    "a manifest without a format": {"manifest.json": b"{}", "arrays.safetensors": header(b"{}")},
    "a format that is no number": {
        "manifest.json": b'{"format": "1"}',
        "arrays.safetensors": header(b"{}"),
    },
    "nested too deeply": {
        "manifest.json": b"[" * 10**6,
        "arrays.safetensors": header(b"{}"),
    },
    "a header longer than the file": {
        "manifest.json": FINE,
        "arrays.safetensors": (10**15).to_bytes(8, "little") + b"{}",
    },
    "an array longer than the file": {
        "manifest.json": FINE,
        "arrays.safetensors": header(HUGE) + bytes(8),
    },
    "pickled": {"manifest.json": FINE, "arrays.safetensors": b"\x80\x04c__builtin__\nexec\n."},
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_files_made_to_do_harm_are_refused(tmp_path, name):
    path = tmp_path / "run.zip"
    path.write_bytes(sealed(MALICIOUS[name]))
    with pytest.raises(CheckpointError, match=r"run\.zip is no checkpoint") as refusal:
        read(path)
    assert "\n" not in str(refusal.value)


def test_neither_bombs_nor_other_members_are_unpacked(tmp_path):
    path = tmp_path / "run.zip"
    contents = {"manifest.json": FINE, "arrays.safetensors": header(ONE) + bytes(8)}
    path.write_bytes(sealed({**contents, "manifest.json": b" " * 10**7}, zipfile.ZIP_DEFLATED))
    with pytest.raises(CheckpointError, match=r"manifest\.json is compressed"):
        read(path)
    path.write_bytes(sealed({**contents, "../escaped": b"x"}))
    arrays, facts = read(path)
    assert (list(arrays), facts) == (["x"], {})
    assert [file.name for file in tmp_path.iterdir()] == ["run.zip"]
    assert not (tmp_path.parent / "escaped").exists()


def test_a_newer_format_is_named(tmp_path):
    path = tmp_path / "run.zip"
    path.write_bytes(
        sealed({"manifest.json": b'{"format": 2}', "arrays.safetensors": header(b"{}")})
    )
    with pytest.raises(CheckpointError, match=r"has format 2.*reads up to 1; update recollect"):
        read(path)


def test_arrays_that_do_not_fit_are_named():
    tree = dict(a=jnp.zeros((2, 3)), b=jnp.zeros(2))
    arrays = named_arrays(tree)
    with pytest.raises(CheckpointError, match=r"it has no \['b'\]"):
        filled(tree, {name: arrays[name] for name in arrays if "b" not in name})
    with pytest.raises(
        CheckpointError, match=r"\['a'\] is float32\[3, 2\] there, and float32\[2, 3\]"
    ):
        filled(tree, {**arrays, "['a']": np.zeros((3, 2), np.float32)})
    with pytest.raises(CheckpointError, match=r"\['b'\] is float64\[2\] there"):
        filled(tree, {**arrays, "['b']": np.zeros(2)})


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "run.zip"
    write(path, named_arrays(state()), {"iteration": 1})
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, named_arrays(state()), {"iteration": 2})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.zip"]
