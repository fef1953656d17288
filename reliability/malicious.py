"""Files made to do harm are given to everything that loads: each is refused, and nothing happens.

    python reliability/malicious.py

Every file but the first few has a right checksum. Watched are the folder around it, which has to
stay as it is, and what Python's audit hooks tell: no program is started, no module imported by a
name in a file, nothing unpickled, and nothing written.
"""

import hashlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import folder, problem, quiet, record, set_up

FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class")
PICKLE = b"\x80\x04cos\nsystem\n(S'touch harm'\ntR."
DEEP = b'{"format": 1, "settings": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"


def sealed(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A file with a right checksum and any contents."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, method)
        archive.comment = b"0" * 64
    body = buffer.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def header(fields: Any) -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text


def array(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def files(good: bytes) -> dict[str, bytes]:
    """What is made of the bytes of a checkpoint, by a name that says it."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        arrays = archive.read("arrays.safetensors")
    length = int.from_bytes(arrays[:8], "little")
    fields = json.loads(arrays[8 : 8 + length])
    names = sorted(name for name in fields if name.endswith("weight"))

    def told(**changed: Any) -> bytes:
        return packed(json.dumps({**manifest, **changed}).encode())

    def packed(text: bytes, tensors: bytes = arrays) -> bytes:
        return sealed([("manifest.json", text), ("arrays.safetensors", tensors)])

    def with_fields(changed: dict[str, Any]) -> bytes:
        return packed(json.dumps(manifest).encode(), header(changed) + arrays[8 + length :])

    def setting(*path: str, value: Any) -> bytes:
        settings = json.loads(json.dumps(manifest["settings"]))
        owner = settings
        for key in path[:-1]:
            owner = owner[key]
        owner[path[-1]] = value
        return told(settings=settings)

    text = json.dumps(manifest).encode()
    first = fields[names[0]]
    other_shape = {**first, "shape": [*first["shape"][::-1], 1]}
    bomb = [("manifest.json", b" " * 10**8), ("arrays.safetensors", arrays)]
    shown = [("manifest.json", text), ("arrays.safetensors", arrays)]
    module = {"kind": "EnvSettings", "name": "harm:Env-v0"}
    return {
        "empty": b"",
        "a pickle": PICKLE,
        "a program": b"#!/bin/sh\ntouch harm\n",
        "a zip without a checksum": good[:-64],
        "a checksum of something else": good[:-64] + b"0" * 64,
        "a zip with nothing inside": sealed([]),
        "only a manifest": sealed(shown[:1]),
        "only arrays": sealed(shown[1:]),
        "names that lead out of the folder": sealed([("../harm", text), ("/tmp/harm", arrays)]),
        "a bomb": sealed(bomb, zipfile.ZIP_DEFLATED),
        "compressed arrays": sealed(shown, zipfile.ZIP_DEFLATED),
        "a manifest of 20 MB": packed(b" " * 20 * 2**20 + text),
        "two manifests": sealed([*shown, ("manifest.json", b"{}")]),
        "no JSON": packed(b"{"),
        "a list": packed(b"[]"),
        "JSON that is nested deeply": packed(DEEP),
        "JSON that is not UTF-8": packed(b'{"format": 1, "x": "\xff"}'),
        "a number of a million digits": packed(
            b'{"format": 1, "iteration": ' + b"9" * 10**6 + b"}"
        ),
        "no format": told(format=None),
        "a newer format": told(format=2),
        "a format that is true": told(format=True),
        "a format of 10³⁰": told(format=10**30),
        "a pickle for arrays": packed(text, PICKLE),
        "a header longer than the file": packed(text, (10**15).to_bytes(8, "little") + b"{}"),
        "a header of nested lists": packed(text, header(b"[" * 10**5)),
        "an array longer than the file": with_fields({"x": array("F32", [10**15], 0, 4 * 10**15)}),
        "arrays that overlap": with_fields({**fields, names[0]: fields[names[1]]}),
        "an unknown type of array": with_fields({**fields, names[0]: {**first, "dtype": "OBJ"}}),
        "another type of array": with_fields({**fields, names[0]: {**first, "dtype": "I32"}}),
        "another shape": with_fields({**fields, names[0]: other_shape}),
        "an array less": with_fields({n: f for n, f in fields.items() if n != names[0]}),
        "an iteration that is text": told(iteration="3"),
        "an iteration of −1": told(iteration=-1),
        "no settings": told(settings=None),
        "settings that are a list": told(settings=[1]),
        "a module for an environment": setting("env", value=module),
        "a class that is not ours": setting("algorithm", value={"kind": "os.system"}),
        "an environment that is a function": setting("env", value={"object": "os.system"}),
        "a class of ours in the wrong place": setting("algorithm", value={"kind": "Steps"}),
        "a damping of NaN": setting("algorithm", "discount", value=float("nan")),
        "a window of 10³⁰": setting("algorithm", "window", value=10**30),
        "a field that does not exist": setting("algorithm", "__class__", value="x"),
        "seeds without end": setting("seeds", value=10**12),
    }


def watch(seen: list[str]) -> None:
    """Note what may not happen while `seen` holds a name."""

    def hook(event: str, arguments: tuple) -> None:
        if not seen:
            return
        writes = (
            event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        )
        foreign = event == "import" and arguments[0].startswith("harm")
        if event in FORBIDDEN or writes or foreign:
            seen.append(f"{event} {arguments}")

    sys.addaudithook(hook)


def refused(path: Path, load: Callable[[Path], Any]) -> str:
    """What loading the file says, in one sentence; or what is wrong with it, after `!`."""
    from recollect.run.checkpoint import CheckpointError

    before = sorted(os.listdir(path.parent))
    try:
        load(path)
        said = "! nothing"
    except (CheckpointError, ValueError) as error:
        said = str(error) if "\n" not in str(error) else f"! {error}"
    except Exception as error:
        said = f"! {type(error).__name__}: {error}"
    return said if sorted(os.listdir(path.parent)) == before else "! wrote files"


def answers(name: str) -> dict[str, str]:
    """What is said of each file, in a folder that is empty; with `!` if anything happened."""
    quiet()
    from recollect import Agent, train

    seen: list[str] = []
    watch(seen)
    train(**problem(), iterations=1, out=Path(name) / "run")
    harmful = files((Path(name) / "run" / "checkpoints" / "00000001.zip").read_bytes())
    path = Path(name) / "loaded" / "agent.zip"
    path.parent.mkdir()
    said = {}
    for what, data in harmful.items():
        path.write_bytes(data)
        seen[:] = [what]
        said[what] = refused(path, Agent.load)
        if seen[1:]:
            said[what] = f"! {seen[1:]}"
        seen.clear()
    return said


def main() -> None:
    set_up()
    with folder() as name:
        said = answers(name)
    for what, text in said.items():
        print(f"{what}: {text[:150]}")
    good = sum(not text.startswith("!") for text in said.values())
    result = f"{good} refused in one sentence; no code run, nothing written"
    record("malicious.py", "files made to do harm", f"{len(said)}", result)


if __name__ == "__main__":
    main()
