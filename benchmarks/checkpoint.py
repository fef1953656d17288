"""What keeping a run costs: the share of training that is spent on writing files.

    python benchmarks/checkpoint.py [--seconds 130]

RNPG with a window of 10 and the paper's settings on CartPole-v1, in a run folder with a checkpoint
a minute, as by default. Counted is the time inside the folder's own functions, so that the share
does not depend on what else the machine does. It should be 2 % at most.
"""

import argparse
import tempfile
import time
from pathlib import Path

from recollect import preset
from recollect.report.tables import markdown
from recollect.run.config import RunConfig
from recollect.run.folder import RunFolder
from recollect.run.session import Until
from recollect.run.train import execute


class Timed(RunFolder):
    """A folder that knows how long it has been written to."""

    spent = 0.0
    checkpoints_written = 0

    def record(self, session, chunk):
        began = time.perf_counter()
        super().record(session, chunk)
        self.spent += time.perf_counter() - began

    def checkpoint(self, session):
        self.checkpoints_written += 1
        super().checkpoint(session)

    def finish(self, session):
        began = time.perf_counter()
        super().finish(session)
        self.spent += time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=130.0, help="of training, about")
    options = parser.parse_args()
    chosen = preset("rnpg", "paper")
    rows = []
    for seeds in (1, 20):
        config = RunConfig.of(
            "CartPole-v1", chosen.algorithm, chosen.collector, chosen.policy, seeds
        )
        with tempfile.TemporaryDirectory() as parent:
            folder = Timed.create(Path(parent) / "run", config, Until(iterations=10**9))
            training = execute(
                config,
                folder.until,
                folder=folder,
                watchers=[lambda session, chunk: session.clock[-1] < options.seconds],
                progress=False,
            )
            size = max(path.stat().st_size for path in folder.checkpoints())
        total = training.clock[-1] + folder.spent
        rows.append(
            (
                str(seeds),
                f"{training.curves['kl'].shape[1]:,}",
                f"{total:.0f}",
                str(folder.checkpoints_written),
                f"{size / 2**20:.1f}",
                f"{100 * folder.spent / total:.2f} %",
            )
        )
    columns = ("seeds", "iterations", "seconds", "checkpoints", "MiB each", "share of writing")
    print(*markdown(columns, rows), sep="\n")


if __name__ == "__main__":
    main()
