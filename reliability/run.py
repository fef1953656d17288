"""All measurements, one after another: writes docs/reliability.md.

    python reliability/run.py [SCRIPT ...]

They take about an hour. `disk_full.py` needs root, for a file system of its own.
"""

import subprocess
import sys

from common import HERE

SCRIPTS = [
    "kill.py",
    "nonfinite.py",
    "disk_full.py",
    "corruption.py",
    "malicious.py",
    "fuzz.py",
    "race.py",
    "endurance.py",
    "hanging.py",
]


def main() -> None:
    chosen = sys.argv[1:] or SCRIPTS
    failed = [
        script for script in chosen if subprocess.run([sys.executable, HERE / script]).returncode
    ]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
