"""Benchmarks as a page: writes benchmarks/RESULTS.md.

    python benchmarks/run.py [SCRIPT ...] [--on ray --cluster auto]

All of them take about an hour. With names of scripts only those run again; the other sections stay
as they were. Scripts that are made of cells measure them where `--on` says, one on each CPU; what
is about time is measured on this machine. Times on shared machines are noisy; the ratios within a
table were measured in one run.
"""

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

from variants import add_machines

HERE = Path(__file__).parent
PAGE = HERE / "RESULTS.md"
SECTIONS = {
    "sample_efficiency.py": "Environment steps to a threshold, beside Stable-Baselines3",
    "locomotion.py": "Hopper and HalfCheetah, beside Stable-Baselines3",
    "host_seeds.py": "Training throughput on the host, a process for each core beside one",
    "cluster.py": "A Ray cluster: what was promised, and what units cost",
    "throughput.py": "Training throughput of PPO, one seed",
    "trust_region.py": "KL of accepted TRPO steps on fresh states",
    "gradient_error.py": "How far gradients of windows are from the truth",
    "clip_centre.py": "Samples that PPO's clip silences",
    "training.py": "Training RNPG on cartpole: 50 seeds × 150 iterations × 4 episodes, window 10",
    "ages_in_use.py": "An update that uses 1 of 32 stored batches",
    "checkpoint.py": "The share of training that is spent on keeping it",
    "large_update.py": "One update with 80,000 rows and 4,610 parameters",
    "solvers.py": "Solvers against rows and parameters",
}
OF_CELLS = ("sample_efficiency.py", "locomotion.py")
"""Scripts whose figures do not depend on where they are measured."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="only these")
    add_machines(parser)
    options = parser.parse_args()
    unknown = set(options.scripts) - set(SECTIONS)
    if unknown:
        names = ", ".join(sorted(unknown))
        sys.exit(f"no such benchmark: {names}; choose from {', '.join(SECTIONS)}")
    machines = ["--on", options.on] + (["--cluster", options.cluster] if options.cluster else [])
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    kept = dict(part.split("\n\n", 1) for part in text.split("\n## ")[1:])
    machine = platform.processor() or platform.machine()
    parts = [
        "# Benchmarks",
        "Written by `make benchmark`. Each script's opening lines say what is measured and how.",
        f"Machine: {os.cpu_count()} cores, {machine}, Python {platform.python_version()}.",
    ]
    for script, title in SECTIONS.items():
        if title in kept and options.scripts and script not in options.scripts:
            parts += [f"## {title}", kept[title].strip()]
            continue
        print(f"{script} …", file=sys.stderr, flush=True)
        command = [sys.executable, HERE / script, *(machines if script in OF_CELLS else [])]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        parts += [f"## {title}", f"`python benchmarks/{script}`", result.stdout.strip()]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
