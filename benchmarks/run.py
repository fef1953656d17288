"""All benchmarks, one after another, as a page: python benchmarks/run.py writes benchmarks/RESULTS.md (about 6 minutes).

Times on shared machines are noisy; the ratios within a table were measured in one run.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SECTIONS = {
    "training.py": "Training RNPG on cartpole: 50 seeds × 150 iterations × 4 episodes, window 10",
    "large_update.py": "One update with 80,000 rows and 4,610 parameters",
    "solvers.py": "Solvers against rows and parameters",
}


def main() -> None:
    parts = [
        "# Benchmarks",
        "Written by `make benchmark`. Each script's opening lines say what is measured and how.",
        f"Machine: {os.cpu_count()} cores, {platform.processor() or platform.machine()}, Python {platform.python_version()}.",
    ]
    for script, title in SECTIONS.items():
        print(f"{script} …", file=sys.stderr, flush=True)
        result = subprocess.run([sys.executable, HERE / script], capture_output=True, text=True, check=True)
        parts += [f"## {title}", f"`python benchmarks/{script}`", result.stdout.strip()]
    (HERE / "RESULTS.md").write_text("\n\n".join(parts) + "\n")
    print((HERE / "RESULTS.md").read_text())


if __name__ == "__main__":
    main()
