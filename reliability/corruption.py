"""Bits of a checkpoint are flipped and its end is cut off: all is noticed, the one before is taken.

    python reliability/corruption.py [FLIPS]

Half of the flips are in one bit, half in two to eight; there is one truncation for four flips.
"""

import random
import warnings
from pathlib import Path

from common import count, folder, problem, quiet, record, set_up


def damaged(whole: bytes, draw: random.Random, flips: int, cuts: int):
    """The bytes of a file with random damage, again and again."""
    for number in range(flips):
        spoiled = bytearray(whole)
        places = draw.sample(range(8 * len(whole)), 1 if number % 2 else draw.randint(2, 8))
        for place in places:
            spoiled[place // 8] ^= 1 << (place % 8)
        yield bytes(spoiled)
    for length in draw.sample(range(len(whole)), cuts):
        yield whole[:length]


def noticed(out: Path, flips: int, cuts: int) -> int:
    """How often damage to the newest checkpoint of a run was noticed, and the older one taken."""
    from recollect.run.folder import RunFolder

    kept = RunFolder.open(out)
    older, newest = kept.checkpoints()
    whole = newest.read_bytes()
    total = 0
    try:
        for spoiled in damaged(whole, random.Random(0), flips, cuts):
            newest.write_bytes(spoiled)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                snapshot = kept.latest()
            told = [str(one.message) for one in said]
            total += (
                snapshot.iteration == int(older.stem)
                and len(told) == 1
                and str(newest) in told[0]
                and "The checkpoint before it is taken" in told[0]
            )
    finally:
        newest.write_bytes(whole)
    return total


def main() -> None:
    set_up()
    quiet()
    from recollect import train

    flips = count(2000)
    cuts = flips // 4
    with folder() as name:
        out = Path(name) / "run"
        train(**problem(), iterations=3, out=out, checkpoint_seconds=0, callback=lambda *_: None)
        total = noticed(out, flips, cuts)
    result = f"{total:,} noticed in one sentence, and the checkpoint before it taken"
    times = f"{flips:,} flips, {cuts:,} truncations"
    record("corruption.py", "a damaged checkpoint", times, result)


if __name__ == "__main__":
    main()
