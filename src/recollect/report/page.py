"""A run, or several side by side, as one HTML file that needs no network and no JAX to be made.

Everything is in the file: style, script, data and pictures, below 300 kB for some ten runs. It can
be read without a script, which adds hover, series on and off and the choice of the axis. Whatever
a user has named is escaped.
"""

import base64
import json
import mimetypes
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np

from recollect.report import figures
from recollect.report.colours import run_colours
from recollect.report.compare import Difference, differences_of
from recollect.report.diagnosis import diagnose, reason
from recollect.report.figures import Figure, by_age, chart_of, points
from recollect.report.reading import Run, read_runs
from recollect.report.script import places, script_data
from recollect.report.svg import Chart, heat_map, line_chart, paint
from recollect.statistics import Estimate, mean_interval

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
"""What a browser may do with the page: nothing that leaves it."""
TILES = 4
"""Runs, at most, that have their result in large figures above the table."""


def write_report(runs: Sequence[Path], out: Path, animation: Path | None = None) -> Path:
    """Write a page about runs.

    Args:
        runs: their folders, or folders of several runs.
        out: the file, which is replaced.
        animation: a GIF, PNG or WebP of the agent, which becomes part of the page.

    Returns:
        The file.

    Raises:
        ValueError: if a folder holds no run, or one that cannot be read.
        OSError: if the file cannot be written.
    """
    text = page(read_runs(runs), animation=None if animation is None else data_uri(animation))
    out.write_text(text, encoding="utf-8")
    return out


def data_uri(path: Path) -> str:
    """A picture as the address that holds it."""
    kind = mimetypes.guess_type(path.name)[0]
    if kind is None or not kind.startswith("image/"):
        raise ValueError(f"animation={path} is no picture; give a GIF, PNG or WebP file.")
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def page(runs: Sequence[Run], animation: str | None = None, live: bool = False) -> str:
    """The page about runs, as text.

    Args:
        runs: labelled, at least one.
        animation: address of a picture of the agent, `data:image/…`.
        live: whether the page follows the run, for a server.
    """
    colours = run_colours([run.label for run in runs])
    drawn: dict[str, Chart] = {}
    sections = [
        _header(runs, live),
        _controls(runs, colours),
        _tiles(runs, colours) if len(runs) <= TILES else "",
        '<div class="lead">',
        _learning(runs, colours, drawn),
        _diagnosis(runs, colours),
        "</div>",
        "" if animation is None else _animation(animation),
        _summary(runs, colours),
        _comparison(runs),
        _reuse(runs, colours, drawn),
        _cards("The step", figures.STEP, runs, colours, drawn),
        _cards("The solver", figures.SOLVER, runs, colours, drawn),
        _cards("Critic and episodes", figures.CRITIC, runs, colours, drawn),
        _cards("Other figures", figures.others(runs), runs, colours, drawn),
        _refused(runs),
        _settings(runs),
        f'<script type="application/json" id="data">{script_data(runs, colours, drawn)}</script>',
    ]
    parts = files("recollect.report")
    style = parts.joinpath("page.css").read_text(encoding="utf-8")
    script = parts.joinpath("page.js").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(_title(runs))}</title><style>{style}</style></head>"
        f"<body{' data-live=1' if live else ''}><main>{''.join(sections)}</main>"
        f'<div id="tip" role="status" hidden></div><script>{script}</script></body></html>\n'
    )


def _title(runs: Sequence[Run]) -> str:
    envs = list(dict.fromkeys(run.env for run in runs))
    names = list(dict.fromkeys(run.name for run in runs))
    return f"{_listed(names)} on {_listed(envs)}"


def _listed(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _header(runs: Sequence[Run], live: bool) -> str:
    seeds = sorted({len(run.seeds) for run in runs})
    iterations = sorted({run.iterations for run in runs})
    facts = [
        f"{len(runs)} runs" if len(runs) > 1 else "one run",
        f"{_span(seeds)} {'seed' if seeds == [1] else 'seeds'} each",
        f"{_span(iterations)} iterations",
    ]
    status = '<span id="status" class="live">live</span>' if live else ""
    return (
        f"<header><p class=brand>recollect {status}</p><h1>{escape(_title(runs))}</h1>"
        f"<p class=facts>{' · '.join(facts)}</p></header>"
    )


def _span(numbers: Sequence[int]) -> str:
    ends = [numbers[0], numbers[-1]] if len(numbers) > 1 else numbers
    return " to ".join(f"{n:,}" for n in ends)


def _controls(runs: Sequence[Run], colours: Sequence[str]) -> str:
    axes = "".join(
        f'<label><input type="radio" name="axis" id="axis-{axis}" value="{axis}"'
        f"{' checked' if axis == 'iteration' else ''}>{name}</label>"
        for axis, name in (("iteration", "iterations"), ("steps", "steps"), ("seconds", "seconds"))
    )
    names = "".join(
        f'<label style="--c:{paint(colour)}"><input type="checkbox" data-series="{number}" '
        f'id="run-{number}" checked><i></i>{escape(run.label)}</label>'
        for number, (run, colour) in enumerate(zip(runs, colours, strict=True))
    )
    return (
        f'<div class="controls"><fieldset class="legend"><legend>runs</legend>{names}</fieldset>'
        f'<fieldset class="axes"><legend>against</legend>{axes}</fieldset></div>'
    )


def _tiles(runs: Sequence[Run], colours: Sequence[str]) -> str:
    tiles = []
    for number, (run, colour) in enumerate(zip(runs, colours, strict=True)):
        mean, low, high = mean_interval(run.final_returns())
        interval = f"{low:,.4g} to {high:,.4g}" if np.isfinite(low) else "one seed, no interval"
        steps = run.axes["steps"][-1:].sum()
        tiles.append(
            f'<div class="tile" data-run="{number}" style="--c:{paint(colour)}">'
            f"<h2>{escape(run.label)}</h2><p class=big>{_number(mean)}</p>"
            f"<p>final return, 95 % interval {interval}</p>"
            f"<p class=small>{steps:,.0f} environment steps a seed</p></div>"
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _card(figure: Figure, chart: Chart, runs: Sequence[Run], size: tuple[int, int]) -> str:
    x = [places(run, "iteration", points(runs)) for run in runs]
    meaning = f"{figure.meaning}{' (geometric mean)' if figure.log else ''}"
    return (
        f"<figure><figcaption><b>{escape(figure.title)}</b> {escape(meaning)}</figcaption>"
        f'{line_chart(chart, x, *size)}<p class="axis-name">iteration</p></figure>'
    )


def _learning(runs: Sequence[Run], colours: Sequence[str], drawn: dict[str, Chart]) -> str:
    chart = chart_of(figures.RETURN, runs, colours)
    if chart is None:
        words = "No episode has ended yet, so there is no return to show."
        return f'<section class="main"><h2>Learning curve</h2><p>{words}</p></section>'
    drawn[chart.key] = chart
    card = _card(figures.RETURN, chart, runs, (620, 330))
    note = "Lines are means over seeds, shades their 95 % intervals (Student’s t)."
    return (
        f'<section class="main"><h2>Learning curve</h2>{card}<p class="small">{note}</p></section>'
    )


def _cards(
    title: str,
    shown: Iterable[Figure],
    runs: Sequence[Run],
    colours: Sequence[str],
    drawn: dict[str, Chart],
    more: str = "",
) -> str:
    """A section with a chart for each figure that was measured, and nothing if none was."""
    cards = []
    for figure in shown:
        chart = chart_of(figure, runs, colours)
        if chart is not None:
            drawn[chart.key] = chart
            cards.append(_card(figure, chart, runs, (370, 230)))
    if not cards and not more:
        return ""
    return f'<section><h2>{title}</h2><div class="cards">{"".join(cards)}{more}</div></section>'


def _reuse(runs: Sequence[Run], colours: Sequence[str], drawn: dict[str, Chart]) -> str:
    maps = []
    for run in runs:
        if run.window < 2 or run.ess_share_by_age is None or not run.iterations:
            continue
        title = "Effective sample size by age"
        meaning = "Share of each stored batch that still counts"
        maps.append(_by_age(run, run.ess_share_by_age, title, meaning))
        if "shares" in run.curves and run.chooses_shares:
            title, meaning = "Shares by age", "How much each batch contributed to the update"
            most = float(np.nanmax(by_age(run.curves["shares"])))
            maps.append(_by_age(run, run.curves["shares"], title, meaning, most))
    return _cards("Reuse", figures.REUSE, runs, colours, drawn, "".join(maps))


def _by_age(run: Run, shares: np.ndarray, title: str, meaning: str, most: float = 1.0) -> str:
    """A heat map of shares by age and time, whose strongest colour stands for `most`."""
    title = f"{title}, {run.label}"
    grouped = ", several to a row" if run.window > figures.AGES else ""
    return (
        f"<figure><figcaption><b>{escape(title)}</b> {meaning}; upwards are older batches{grouped}"
        f"</figcaption>{heat_map(by_age(shares), run.iterations, title, 370, 230, most)}"
        f'<p class="ramp"><span>0 %</span><i></i><span>{100 * most:.0f} %</span></p></figure>'
    )


def _diagnosis(runs: Sequence[Run], colours: Sequence[str]) -> str:
    blocks = []
    for number, (run, colour) in enumerate(zip(runs, colours, strict=True)):
        items = "".join(
            f'<li class="{one.kind}">{escape(one.says)}'
            f"{f'<span>{escape(one.advice)}</span>' if one.advice else ''}</li>"
            for one in diagnose(run)
        )
        name = "" if len(runs) == 1 else f"<h3><i></i>{escape(run.label)}</h3>"
        items = items or "<li class=note>Nothing stands out.</li>"
        blocks.append(
            f'<div data-run="{number}" style="--c:{paint(colour)}">{name}<ul>{items}</ul></div>'
        )
    return f'<section class="diagnosis"><h2>Diagnosis</h2>{"".join(blocks)}</section>'


def _animation(address: str) -> str:
    return (
        '<section class="animation"><h2>The agent</h2>'
        f'<img src="{escape(address)}" alt="An episode of the agent"></section>'
    )


def _summary(runs: Sequence[Run], colours: Sequence[str]) -> str:
    columns = (
        *("run", "final return", "95 % interval", "mean return", "steps of a seed"),
        *("seconds", "steps/s", "refused"),
    )
    rows = []
    for number, (run, colour) in enumerate(zip(runs, colours, strict=True)):
        mean, low, high = mean_interval(run.final_returns())
        average = mean_interval(run.curves["return_mean"].ravel())[0]
        steps = np.nansum(run.batch)
        seconds = float(run.axes["seconds"][-1:].sum())
        refused = np.isfinite(run.curves["refused"]) & (run.curves["refused"] > 0)
        cells = (
            _number(mean),
            f"{_number(low)} to {_number(high)}" if np.isfinite(low) else "–",
            _number(average),
            f"{run.axes['steps'][-1:].sum():,.0f}",
            f"{seconds:,.1f}",
            f"{steps / seconds:,.0f}" if seconds else "–",
            f"{int(refused.sum()):,}",
        )
        name = f'<th scope="row" style="--c:{paint(colour)}"><i></i>{escape(run.label)}</th>'
        rows.append(f'<tr data-run="{number}">{name}{_cells(cells)}</tr>')
    note = "Final: mean over the last tenth of the iterations. Steps/s: of all seeds together."
    return f"<section><h2>Summary</h2>{_table(columns, rows)}<p class=small>{note}</p></section>"


def _comparison(runs: Sequence[Run]) -> str:
    found = differences_of(runs)
    if not found:
        return ""
    columns = ("difference", "seeds in common", "final return", "over the same steps", "verdict")
    rows = [
        f'<tr><th scope="row">{escape(one.run)} − {escape(one.reference)}</th>'
        f"{_cells((one.seeds, _signed(one.final), _signed(one.average), _verdict(one)))}</tr>"
        for one in found
    ]
    note = (
        "Seed by seed, with the 95 % interval over seeds. Over the same steps: mean difference of "
        "the learning curves up to the environment steps that both have taken."
    )
    table = _table(columns, rows)
    return f"<section><h2>Paired differences</h2>{table}<p class=small>{note}</p></section>"


def _signed(one: Estimate) -> str:
    if not np.isfinite(one.value):
        return "–"
    if not np.isfinite(one.low):
        return f"{one.value:+,.4g}"
    return f"{one.value:+,.4g} ({one.low:+,.4g} to {one.high:+,.4g})"


def _verdict(one: Difference) -> str:
    if not np.isfinite(one.average.low):
        return "one seed tells nothing"
    if one.average.low > 0:
        return "better over the same steps"
    return "worse over the same steps" if one.average.high < 0 else "no clear difference"


def _refused(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        refused = run.curves["refused"]
        updates = int(np.isfinite(refused).sum())
        for code in np.unique(refused[np.isfinite(refused) & (refused > 0)]):
            places = refused == code
            last = int(np.flatnonzero(places.any(0))[-1]) + 1
            share = f"{100 * places.sum() / updates:.1f} %"
            cells = _cells((f"{places.sum():,}", share, last))
            why = f'<td class="text">{escape(reason(int(code)))}</td>'
            rows.append(f'<tr><th scope="row">{escape(run.label)}</th>{why}{cells}</tr>')
    if not rows:
        return "<section><h2>Refused updates</h2><p>None: every update was taken.</p></section>"
    columns = ("run", "reason", "updates", "share", "last in iteration")
    note = "A refused update leaves the policy as it was."
    table = _table(columns, rows)
    return f"<section><h2>Refused updates</h2>{table}<p class=small>{note}</p></section>"


def _settings(runs: Sequence[Run]) -> str:
    blocks = []
    for run in runs:
        changed = run.facts.get("changed")
        changed = changed if isinstance(changed, list) else []
        rows = [
            f'<tr><th scope="row">{_breakable(escape(str(name)))}</th>'
            f"{_cells((_plain(ours), _plain(usual)))}</tr>"
            for name, usual, ours in (one for one in changed if len(one) == 3)
        ]
        table = _table(("differs from the defaults", "here", "default"), rows) if rows else ""
        none = "" if rows else "<p>Defaults throughout, or not recorded.</p>"
        everything = json.dumps(run.facts, indent=1, ensure_ascii=False)
        seeds = ", ".join(map(str, run.seeds[:20])) + (", …" if len(run.seeds) > 20 else "")
        blocks.append(
            f"<article><h3>{escape(run.label)}</h3><p class=small>{escape(run.env)} · "
            f"seeds {seeds or 'none yet'} · {escape(str(run.folder))}</p>{table}{none}"
            f"<details><summary>All settings, versions and the command</summary>"
            f"<pre tabindex=0>{escape(everything)}</pre></details></article>"
        )
    return f"<section><h2>What was run</h2>{''.join(blocks)}</section>"


def _breakable(name: str) -> str:
    """The name of a setting, which a narrow screen breaks after dots and underscores."""
    return name.replace(".", ".<wbr>").replace("_", "_<wbr>")


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _table(columns: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(values: Iterable[object]) -> str:
    return "".join(f"<td>{escape(str(value))}</td>" for value in values)


def _number(value: float | np.ndarray) -> str:
    value = float(value)
    if not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
