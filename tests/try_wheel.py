"""Try a wheel where no source is: python tests/try_wheel.py dist/NAME.whl

Makes an environment in an empty folder, installs the wheel there with the pins of constraints.txt,
and runs every command of the command line, the examples of the pages and a type checker's view.
Minutes, and a gigabyte of disk.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMALL = "--seeds 1 --iterations 2 --quiet"
COMMANDS = f"""
--version
--help
envs
algorithms
train rnpg CartPole-v1 {SMALL} --out run
train {ROOT}/examples/vmpo.py:VMPO CartPole-v1 {SMALL} --out own
train rnpg CartPole-v1 {SMALL} --weights {ROOT}/examples/weight_rule.py:Flattened:0.5 --out rule
compare CartPole-v1 --algorithms vpg rpg --max-steps 50 {SMALL} --out both
resume run --iterations 3
eval run --episodes 2
plot run --out curves.png
report run --out report.html
export run --out policy.npz
play run --video film.gif
watch --help
tune --help
theory rate --help
paper --help
"""
INSIDE = """
import importlib.metadata, importlib.resources
import recollect, recollect.public
files = importlib.resources.files("recollect")
assert (files / "py.typed").is_file()
assert "site-packages" in recollect.__file__, recollect.__file__
assert importlib.metadata.version("recollect") == recollect.__version__
"""


def main(wheel: str) -> int:
    """Install and try the wheel; returns the exit code."""
    os.environ.pop("PYTHONPATH", None)  # where the source may be
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        programs = folder / "env" / "bin"
        pins = ["--constraint", str(ROOT / "constraints.txt")]
        # The extra brings what CartPole-v1 is drawn with.
        what = f"{Path(wheel).resolve()}[paper]"
        subprocess.run([programs / "pip", "install", "--quiet", *pins, what], check=True)
        subprocess.run([programs / "python", "-c", INSIDE], cwd=folder, check=True)
        failed = [words for words in COMMANDS.strip().splitlines() if not _works(words, folder)]
    print("failed: " + "; ".join(failed) if failed else "all commands work")
    return 1 if failed else 0


def _works(words: str, folder: Path) -> bool:
    command = [folder / "env" / "bin" / "recollect", *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        print(
            f"recollect {words}: exit code {done.returncode}\n{done.stdout}{done.stderr}",
            flush=True,
        )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
