"""The page as a person meets it, in headless Chromium."""

import threading

import pytest
from browser import chromium, tab
from run_files import write_run

import recollect as rc
from recollect.report.page import write_report
from recollect.report.watch import server_of

pytestmark = pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
TICKS = "[...document.querySelectorAll('#return_mean .xticks text')].map((one) => one.textContent)"
LINE = "document.querySelector('#return_mean .line').getAttribute('d')"
TIP = "document.getElementById('tip')"


def test_hover_axes_and_series(tmp_path):
    columns = dict(iterations=40, kl=0.01, settings=dict(target_kl=0.05))
    write_run(tmp_path / "all/a", window=5, ess_by_age=[1, 0.8, 0.6, 0.4, 0.2], **columns)
    write_run(tmp_path / "all/b", env="<script>alert(1)</script>", **columns)
    address = write_report([tmp_path / "all"], tmp_path / "page.html").as_uri()
    with tab() as page:
        page.open(address)
        before = page.run(LINE)
        assert page.run(TICKS) == ["0", "10", "20", "30", "40"]

        page.hover("#return_mean", 0.7)
        page.wait(lambda: not page.run(f"{TIP}.hidden"))
        text = page.run(f"{TIP}.textContent")
        assert text.startswith("iteration 2")
        assert "rnpg" in text
        assert "vnpg" in text
        page.hover("svg.heat", 0.9)
        page.wait(lambda: "effective" in page.run(f"{TIP}.textContent"))

        page.click("#axis-steps")
        assert page.run(TICKS) == ["0", "1000", "2000", "3000", "4000"]
        # All batches are alike, so that steps only rename the axis.
        assert page.run(LINE) == before
        page.click("#axis-seconds")
        assert page.run(TICKS) == ["0", "5", "10", "15", "20"]
        page.click("#run-0")
        visible = "[...document.querySelectorAll('#return_mean .series')].map("
        visible += "(one) => getComputedStyle(one).display !== 'none')"
        assert page.run(visible) == [False, True]

        page.run("document.querySelector('#return_mean').focus()")
        for _ in range(5):
            page.press("ArrowRight")
        text = page.run(f"{TIP}.textContent")
        assert text.startswith("seconds 16")
        assert "rnpg" not in text
        assert page.errors == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_laptop_and_phone(tmp_path, width, dark):
    write_run(tmp_path / "a", window=3, max_weight=2, env="A/Very-Long-Name-Of-An-Environment" * 3)
    address = write_report([tmp_path / "a"], tmp_path / "page.html").as_uri()
    with tab() as page:
        page.open(address, width=width, dark=dark)
        assert page.run("document.documentElement.scrollWidth") <= width
        colour = page.run("getComputedStyle(document.body).backgroundColor")
        assert colour == ("rgb(14, 18, 23)" if dark else "rgb(244, 246, 249)")
        # Text on the page is read, not guessed at: 9 pixels at least.
        sizes = "Math.min(...[...document.querySelectorAll('svg text')].map("
        sizes += "(one) => one.getBoundingClientRect().height))"
        assert page.run(sizes) > 9
        assert page.errors == []


def test_it_follows_a_training_that_ends_and_is_resumed(tmp_path):
    folder = tmp_path / "run"
    batch = rc.Steps(copies=2, steps=32)
    rc.train("CartPole-v1", rc.VPG(), collector=batch, iterations=3, out=folder)
    facts = "document.querySelector('.facts').textContent"
    with server_of(folder) as server, tab() as page:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            page.open(server.address)
            assert "3 iterations" in page.run(facts)
            page.click("#axis-steps")
            rc.resume(folder, iterations=6)
            page.wait(lambda: "6 iterations" in page.run(facts))
            # What was chosen stays.
            assert page.run(TICKS)[-1] in ("300", "350", "384")
            assert page.run("document.getElementById('status').textContent") == "live"
            assert page.errors == []
        finally:
            server.shutdown()
            thread.join()
