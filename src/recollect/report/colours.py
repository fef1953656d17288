"""One palette for all pictures: the same colour for the same algorithm, wherever it is drawn."""

from collections.abc import Sequence

COLOURS = ("#7f7f7f", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000")
"""Distinguishable with the common kinds of colour blindness (after Okabe and Ito)."""
ALGORITHM_COLOURS: dict[str, str] = dict(
    zip(("vpg", "rpg", "vnpg", "rnpg", "trpo", "rtrpo", "ppo", "rppo"), COLOURS, strict=True)
)
"""One colour for one algorithm, in every picture."""


def run_colours(names: Sequence[str]) -> list[str]:
    """A colour for each curve: its algorithm's, or the next that is free.

    Args:
        names: of curves; the first word, in any case, may be the name of an algorithm.

    Example:
        >>> from recollect.report.colours import run_colours
        >>> run_colours(["RNPG", "mine", "rnpg, window 4"])
        ['#d55e00', '#7f7f7f', '#0072b2']
    """
    first_words = [(name.lower().replace(",", " ").split() or [""])[0] for name in names]
    wanted = [ALGORITHM_COLOURS.get(word) for word in first_words]
    # An algorithm keeps its colour even if a curve without one comes first.
    chosen = [
        colour if colour not in wanted[:place] else None for place, colour in enumerate(wanted)
    ]
    free = [colour for colour in COLOURS if colour not in chosen] or list(COLOURS)
    rest = iter(free * len(names))
    return [colour or next(rest) for colour in chosen]
