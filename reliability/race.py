"""Processes that ask for run folders at once get one each, and runs beside each other do not mix.

python reliability/race.py [PROCESSES]
"""

from pathlib import Path

from common import count, folder, problem, processes, quiet, record, set_up

RUNS = 8


def claim(parent: str, begin, answers) -> None:
    """Make a numbered folder the moment that all others do."""
    from recollect.run.files import numbered_folder

    begin.wait()
    answers.put(numbered_folder(Path(parent)).name)


def run(parent: str, begin, answers) -> None:
    """Train in a numbered folder."""
    quiet()
    from recollect import train
    from recollect.run.files import numbered_folder

    begin.wait()
    out = numbered_folder(Path(parent))
    train(**problem(), iterations=5, out=out)
    answers.put(out.name)


def race(target, parent: Path, number: int) -> list[str]:
    """What so many processes answer that begin together."""
    context = processes()
    begin = context.Barrier(number)
    answers = context.SimpleQueue()
    args = (str(parent), begin, answers)
    children = [context.Process(target=target, args=args) for _ in range(number)]
    for child in children:
        child.start()
    found = [answers.get() for _ in children]
    for child in children:
        child.join()
    return found


def main() -> None:
    set_up()
    number = count(200)
    with folder() as name:
        parent = Path(name) / "folders"
        found = race(claim, parent, number)
        different = len(set(found) & {one.name for one in parent.iterdir()})
        what = "processes racing for run folders"
        record("race.py", what, f"{number}", f"{different} folders")
        parent = Path(name) / "runs"
        found = race(run, parent, RUNS)
        rows = {
            tuple(line.rpartition(",")[0] for line in (parent / one / "progress.csv").open())
            for one in found
        }
    result = f"{len(set(found))} folders, {'one and the same curve' if len(rows) == 1 else 'mixed'}"
    record("race.py", "real runs of one problem at once", f"{RUNS}", result)


if __name__ == "__main__":
    main()
