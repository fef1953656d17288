"""Run the notebooks under examples/ and keep what they print and draw.

    python tests/notebooks.py [NOTEBOOK ...]        # these, or all

A notebook is run in its own folder and written back in place. What would differ from machine to
machine without telling anything, such as times and versions, is not kept.
"""

import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
ABOUT = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SECONDS = 300
"""That a cell may take."""


def notebooks() -> list[Path]:
    """All of them."""
    return sorted(ROOT.glob("examples/*.ipynb"))


def execute(path: Path) -> None:
    """Run a notebook and write it back; an exception in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    notebook.metadata = ABOUT
    nbformat.write(notebook, path)


def main(names: list[str]) -> None:
    for path in map(Path, names) if names else notebooks():
        start = time.perf_counter()
        execute(path)
        print(f"{path.name}: {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
