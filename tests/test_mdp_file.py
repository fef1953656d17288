"""Finite MDPs in files: whatever is wrong with one, one sentence, and no more memory than it
needs."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from recollect.envs import Tabular, load_mdp, make

EVEN = np.full((3, 2, 3), 1 / 3)
PAY = np.arange(6.0).reshape(3, 2)
GOOD = dict(transitions=EVEN, rewards=PAY, initial=np.array([0.2, 0.3, 0.5]), discount=0.7)


def npy(array, **header):
    """An array as bytes, with other words in its header."""
    file = io.BytesIO()
    if header:
        usual = dict(descr="<f8", fortran_order=False, shape=np.shape(array))
        np.lib.format.write_array_header_1_0(file, {**usual, **header})
        file.write(np.asarray(array, np.float64).tobytes())
    else:
        np.lib.format.write_array(file, np.asarray(array))
    return file.getvalue()


def archive(compression=zipfile.ZIP_STORED, **members):
    """A file of `numpy.savez` from bytes or arrays."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as written:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else npy(content)
            written.writestr(f"{name}.npy", data)
    return file.getvalue()


def twice():
    file = io.BytesIO(archive(**GOOD))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(file, "a") as written:
        written.writestr("rewards.npy", npy(2 * PAY))
    return file.getvalue()


def encrypted():
    """The flag that says so, in both places where it stands."""
    data = bytearray(archive(**GOOD))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    return bytes(data)


def flipped():
    data = bytearray(archive(**GOOD))
    data[data.index(PAY.tobytes()) + 9] ^= 64
    return bytes(data)


HUGE = (10**5, 10**5, 10**5)
MANY = npy(0.0, shape=HUGE)
MANY_PAY = npy(0.0, shape=HUGE[:2])
BAD = {
    "empty": (lambda: b"", "not a zip file"),
    "text": (lambda: b"transitions = 1\n" * 20, "not a zip file"),
    "renamed npy": (lambda: npy(EVEN), "not a zip file"),
    "pickle": (lambda: b"\x80\x04N.", "not a zip file"),
    "cut": (lambda: archive(**GOOD)[:-40], "not a zip file"),
    "cut early": (lambda: archive(**GOOD)[:300], "not a zip file"),
    "flipped byte": (flipped, "Bad CRC-32"),
    "encrypted": (encrypted, "transitions is encrypted"),
    "twice": (twice, "rewards is there twice"),
    "no arrays": (lambda: archive(), "no array 'transitions' but nothing"),
    "no rewards": (lambda: archive(transitions=EVEN), "no array 'rewards' but transitions.npy"),
    "no array": (lambda: archive(**{**GOOD, "rewards": b"hello"}), "rewards does not begin as"),
    "empty array": (lambda: archive(**{**GOOD, "rewards": b""}), "rewards does not begin as"),
    "later format": (
        lambda: archive(**{**GOOD, "rewards": b"\x93NUMPY\x09\x00" + npy(PAY)[8:]}),
        "rewards does not begin as",
    ),
    "endless header": (
        lambda: archive(
            zipfile.ZIP_DEFLATED,
            **{**GOOD, "rewards": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 10**7},
        ),
        "rewards does not begin as",
    ),
    "objects": (
        lambda: archive(**{**GOOD, "rewards": npy(0.0, descr="|O", shape=(3, 2))}),
        "rewards holds values of type object; give real numbers",
    ),
    "complex": (lambda: archive(**{**GOOD, "rewards": PAY + 1j}), "type complex128"),
    "short complex": (
        lambda: archive(**{**GOOD, "rewards": PAY.astype(np.complex64)}),
        "rewards holds values of type complex64",
    ),
    "complex discount": (lambda: archive(**{**GOOD, "discount": 0.7 + 0j}), "type complex128"),
    "words": (lambda: archive(**{**GOOD, "rewards": PAY.astype("U3")}), "type <U3"),
    "records": (lambda: archive(**{**GOOD, "initial": np.zeros(3, "f8,f8")}), "initial holds"),
    "dates": (lambda: archive(**{**GOOD, "rewards": PAY.astype("M8[s]")}), "rewards holds"),
    "scalar rewards": (lambda: archive(transitions=EVEN, rewards=1.0), r"rewards has shape \(\)"),
    "flat rewards": (
        lambda: archive(transitions=EVEN, rewards=PAY[0]),
        r"rewards has shape \(2,\)",
    ),
    "no states": (
        lambda: archive(transitions=np.zeros((0, 2, 0)), rewards=np.zeros((0, 2))),
        r"rewards has shape \(0, 2\)",
    ),
    "no actions": (
        lambda: archive(transitions=np.zeros((3, 0, 3)), rewards=np.zeros((3, 0))),
        r"rewards has shape \(3, 0\)",
    ),
    "negative shape": (
        lambda: archive(**{**GOOD, "rewards": npy(PAY, shape=(-3, -2))}),
        r"rewards has shape \(-3, -2\)",
    ),
    "other states": (
        lambda: archive(transitions=EVEN[:, :, :2], rewards=PAY),
        r"transitions has shape \(3, 2, 2\); with rewards of \(3, 2\) give \(3, 2, 3\)",
    ),
    "wrong initial": (lambda: archive(**{**GOOD, "initial": PAY}), r"give \(3,\)"),
    "many discounts": (lambda: archive(**{**GOOD, "discount": PAY}), r"give \(\)"),
    "header of 10¹⁵ entries": (
        lambda: archive(transitions=MANY, rewards=MANY_PAY),
        "transitions needs 8000000000000128 bytes",
    ),
    "one entry too few": (
        lambda: archive(**{**GOOD, "transitions": npy(EVEN)[:-8]}),
        "transitions needs 272 bytes .* and has 264",
    ),
    "one entry too many": (
        lambda: archive(**{**GOOD, "rewards": npy(PAY) + bytes(8)}),
        "rewards needs 176 bytes",
    ),
    "another compression": (
        lambda: archive(zipfile.ZIP_BZIP2, **GOOD),
        "compressed in a way that NumPy does not use",
    ),
    "no probabilities": (lambda: archive(**{**GOOD, "transitions": EVEN * 2}), "sums to 2"),
    "infinite reward": (lambda: archive(**{**GOOD, "rewards": PAY + np.inf}), "not finite"),
    "discount of one": (lambda: archive(**{**GOOD, "discount": 1.0}), "discount=1.0"),
    "discount of nan": (lambda: archive(**{**GOOD, "discount": np.nan}), "discount=nan"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_file_gets_its_sentence(name, tmp_path):
    content, says = BAD[name]
    path = tmp_path / "mine.npz"
    path.write_bytes(content())
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=says) as caught:
            load_mdp(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert "pickle" not in text
    assert peak < 5e6


def test_whatever_byte_is_damaged_the_file_is_explained_or_means_the_same(tmp_path):
    sound = archive(zipfile.ZIP_DEFLATED, transitions=EVEN, rewards=PAY)
    path, expected = tmp_path / "mine.npz", Tabular(EVEN, PAY, np.full(3, 1 / 3), 0.9)
    explained = 0
    for place in range(0, len(sound), 2):
        damaged = bytearray(sound)
        damaged[place] ^= 1 << (place // 2 % 8)
        path.write_bytes(damaged)
        try:
            env = load_mdp(path)
        except ValueError:
            explained += 1
        else:
            np.testing.assert_array_equal(env.transitions, expected.transitions)
            np.testing.assert_array_equal(env.rewards, expected.rewards)
    assert explained > len(sound) / 4


def test_sizes_that_an_archive_makes_up_take_no_memory(tmp_path):
    """Its shapes agree with what it declares, but no stream of its length can hold as much."""
    many, pay = npy(0.0, shape=(4000, 2, 4000)), npy(0.0, shape=(4000, 2))
    data = bytearray(archive(transitions=many, rewards=pay))
    for name, size in (("transitions", 4000 * 2 * 4000 * 8), ("rewards", 4000 * 2 * 8)):
        # The size stands 24 bytes into the entry of the directory, the name 46.
        entry = data.rindex(f"{name}.npy".encode()) - 46
        data[entry + 24 : entry + 28] = (size + 128).to_bytes(4, "little")
    path = tmp_path / "mine.npz"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="transitions needs 256000128 bytes"):
            load_mdp(path)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


def test_arrays_of_other_names_are_left_alone(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **GOOD, notes=np.zeros(10**7), more=np.array([None]))
    tracemalloc.start()
    try:
        env = make(str(path))
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(env.transitions, EVEN, rtol=1e-6)
    np.testing.assert_allclose(env.initial, GOOD["initial"], rtol=1e-6)
    assert env.discount == 0.7


@pytest.mark.parametrize("kind", [np.float32, ">f8", np.float16, np.int64, bool])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_way_that_numpy_writes_real_numbers_is_read(tmp_path, save, kind):
    certain = np.eye(3)[[[0, 1], [1, 2], [2, 0]]]
    rewards = np.asfortranarray(PAY.astype(kind))
    save(tmp_path / "mine.npz", transitions=certain.astype(kind), rewards=rewards)
    env = load_mdp(tmp_path / "mine.npz", max_steps=7)
    np.testing.assert_array_equal(env.transitions, certain)
    np.testing.assert_array_equal(env.rewards, rewards.astype(float))
    np.testing.assert_allclose(env.initial, 1 / 3, rtol=1e-6)
    assert (env.discount, env.max_steps) == (0.9, 7)
