"""Open every page of the built site in Chromium, on a laptop and on a phone, light and dark.

    python tests/look.py build/site

A page is wrong if it is wider than the window, if a picture is missing, or if the console
complains. Half a minute of processor time; without Chromium nothing is looked at.
"""

import itertools
import sys
from pathlib import Path

from browser import Tab, chromium, tab

WIDTHS = (1280, 390)
TOO_WIDE = """[...document.querySelectorAll("article *")].filter(
    one => one.getBoundingClientRect().right > innerWidth + 1
        && !one.closest(".table-wrapper, .highlight")).length
    + (document.documentElement.scrollWidth > innerWidth)"""
MISSING = "[...document.images].filter(one => !one.naturalWidth).map(one => one.src)"


def complaints(page: Tab, path: Path) -> list[str]:
    """What is wrong with a page."""
    wrong = []
    for width, dark in itertools.product(WIDTHS, (False, True)):
        page.open(path.absolute().as_uri(), width=width, dark=dark)
        if page.run(TOO_WIDE):
            wrong.append(f"wider than {width} pixels")
        wrong += [f"no picture {name}" for name in page.run(MISSING)] + page.errors
        page.errors.clear()
    return wrong


def main(site: str) -> int:
    """Look at all pages; returns the exit code."""
    if chromium() is None:
        print("Chromium is not installed: nobody has looked at the pages.")
        return 0
    paths = sorted(Path(site).rglob("*.html"))
    with tab() as page:
        found = {path: wrong for path in paths if (wrong := complaints(page, path))}
    for path, wrong in found.items():
        print(f"{path}: {'; '.join(wrong)}")
    print(f"{len(paths)} pages looked at, {len(found)} with complaints")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
