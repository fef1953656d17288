"""The disk is full while a run is written: the checkpoint before is intact, and the run goes on.

    python reliability/disk_full.py [CUTS]

Needs root, for a small file system of its own (tmpfs). Before every iteration, a file takes all of
its space but a random number of pages, from none to more than an iteration writes. In the end there
is space again, and the run is compared with one that always had enough. A folder without space, one
that is read-only and one below a file are refused before training begins.
"""

import contextlib
import os
import random
import subprocess
import warnings
from pathlib import Path

from common import count, folder, problem, record, sentence, set_up

PAGE = 4096
SIZE = 4 * 2**20


@contextlib.contextmanager
def small_disk(path: Path, options: str = ""):
    """A file system of its own at a path."""
    path.mkdir()
    size = f"size={SIZE}{options}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


class Filler:
    """Takes all of the space but some pages, anew after every iteration, and looks at the files."""

    def __init__(self, disk: Path, cuts: int):
        self.disk = disk
        self.cuts = cuts
        self.draw = random.Random(0)
        self.refused = 0
        self.unreadable = 0
        self.newest = ""

    def __call__(self, run, info) -> None:
        from recollect.run.checkpoint import CheckpointError, read

        files = sorted((self.disk / "run" / "checkpoints").iterdir())
        for path in files:
            try:
                read(path)
            except CheckpointError:
                self.unreadable += 1
        self.refused += not files or files[-1].name == self.newest
        self.newest = files[-1].name if files else ""
        self.leave(self.draw.randint(0, 16) if run.iteration < self.cuts else SIZE // PAGE)

    def leave(self, pages: int) -> None:
        """Leave just so many pages free."""
        (self.disk / "filler").unlink(missing_ok=True)
        status = os.statvfs(self.disk)
        taken = max(status.f_bavail * status.f_frsize - pages * PAGE, 0)
        (self.disk / "filler").write_bytes(bytes(taken))


def same(one: Path, other: Path) -> bool:
    from kill import contents

    # Which checkpoint is the last but one depends on when there was space.
    without = lambda found: {name: part for name, part in found.items() if name != "files"}
    return without(contents(one)) == without(contents(other))


def main() -> None:
    set_up()
    from recollect import train

    cuts = count(200)
    settings = dict(iterations=cuts + 1, checkpoint_seconds=0)
    with folder() as name, small_disk(Path(name) / "disk") as disk:
        filler = Filler(disk, cuts)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            train(**problem(), out=disk / "run", callback=filler, **settings)
            told = {str(one.message) for one in said if "could not be written" in str(one.message)}
            train(**problem(), out=Path(name) / "run", callback=lambda *_: None, **settings)
        equal = same(disk / "run", Path(name) / "run")
        result = f"{filler.refused} checkpoints were not written, {filler.unreadable} unreadable, "
        result += (
            f"{len(told)} warnings, at the end {'as if there had been space' if equal else 'other'}"
        )
        record("disk_full.py", "a disk that is full while a run is written", f"{cuts} cuts", result)
        filler.leave(0)
        refusals = [sentence(lambda: train(**problem(), out=disk / "full", iterations=1))]
        (Path(name) / "file").touch()
        refusals.append(
            sentence(lambda: train(**problem(), out=Path(name) / "file" / "run", iterations=1))
        )
        with small_disk(Path(name) / "still", ",ro") as still:
            refusals.append(sentence(lambda: train(**problem(), out=still / "run", iterations=1)))
    for one in refusals:
        print(one)
    result = f"{len(refusals)} refused in one sentence"
    what = "a folder that is full, read-only, or below a file"
    record("disk_full.py", what, f"{len(refusals)}", result)


if __name__ == "__main__":
    main()
