"""The server of a run's page: what it answers, and what it does not."""

import contextlib
import http.client
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from rich.console import Console
from run_files import write_run

import recollect as rc
from recollect.report.live import live_table
from recollect.report.watch import gained, server_of
from recollect.run.config import RunConfig
from recollect.run.session import Until
from recollect.run.train import execute


@contextlib.contextmanager
def serving(folder):
    with server_of(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection(*server.server_address, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_it_serves_the_page_and_what_the_progress_gained(tmp_path):
    folder = write_run(tmp_path / "a", iterations=4, planned=8)
    with serving(folder) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, text = ask(server)
        assert status == 200
        assert "data-live" in text
        whole = (folder / "progress.csv").read_text()
        assert ask(server, "/progress.csv") == (200, whole)
        assert ask(server, f"/progress.csv?from={len(whole)}") == (200, "")
        with (folder / "progress.csv").open("a") as file:
            file.write("0,5,500,1,0,1,1,2.5\n1,5,5")
        assert ask(server, f"/progress.csv?from={len(whole)}") == (200, "0,5,500,1,0,1,1,2.5\n")
        # Begun anew, the file is shorter than what the page has seen.
        (folder / "progress.csv").write_text("seed\n")
        assert ask(server, "/progress.csv?from=500") == (200, "seed\n")
        (folder / "config.json").unlink()
        status, text = ask(server)
        assert status == 503
        assert "holds no run" in text


@pytest.mark.parametrize(
    "path",
    ["/config.json", "/../a/config.json", "/%2e%2e/secret", "//etc/passwd", "/checkpoints/", "/x"],
)
def test_it_serves_nothing_else(tmp_path, path):
    with serving(write_run(tmp_path / "a")) as server:
        assert ask(server, path)[0] == 404


def test_it_answers_this_machine_and_get_alone(tmp_path):
    with serving(write_run(tmp_path / "a")) as server:
        port = server.server_address[1]
        assert ask(server, Host=f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port}0"):
            assert ask(server, Host=host)[0] == 403
        for method in ("HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert ask(server, method=method)[0] == 405
        assert ask(server, method="TRACE")[0] == 501
        for start in ("-1", "x", "1e3", "9" * 30, "%C2%B2"):
            assert ask(server, f"/progress.csv?from={start}")[0] == 400


def test_mistakes_are_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        server_of(tmp_path)
    folder = write_run(tmp_path / "a")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match=r"cannot be used: .*; give another"):
            server_of(folder, taken.getsockname()[1])
    with pytest.raises(ValueError, match="port=70000 cannot be used"):
        server_of(folder, 70_000)
    assert gained(tmp_path / "none", 0) == ""


def test_ctrl_c_ends_it_without_a_traceback(tmp_path):
    folder = write_run(tmp_path / "a")
    code = (
        "from pathlib import Path; from recollect.report.watch import serve; "
        f"serve(Path({str(folder)!r}), announce=lambda line: print(line, flush=True))"
    )
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert "http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, "stopped.\n", "")


def test_the_terminal_shows_a_row_for_each_seed():
    env = rc.CartPole(max_steps=20)
    config = RunConfig.of(env, rc.VPG(), rc.Episodes(2), seeds=[3, 8])
    until = Until(iterations=2)
    console = Console(record=True, width=140, file=open("/dev/null", "w"))  # noqa: SIM115
    with live_table("vpg [on] CartPole", until, console) as watch:
        training = execute(config, until, watchers=[watch], progress=False)
    text = console.export_text()
    assert "vpg [on] CartPole  100%" in text
    steps = training.curves["environment_steps"][:, -1]
    for seed, taken in zip((3, 8), steps, strict=True):
        assert any(
            str(seed) in line.split() and f"{taken:,.0f}" in line for line in text.splitlines()
        )
    assert "none" in text
    assert np.isfinite(steps).all()
