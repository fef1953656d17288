"""The page of a run, served to this machine's browsers while the run goes on.

The server listens on the loopback alone and answers two requests: the page, made anew from the
run's files each time, and what progress.csv holds from an offset on, by which the page learns that
there is something new. It reads and never writes, so the run may end, and be resumed, meanwhile.
"""

import http.server
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from recollect.report.page import POLICY, page
from recollect.report.reading import read_runs
from recollect.run.files import PROGRESS, read_facts

ADDRESS = "127.0.0.1"
MOST = 1 << 20
"""Bytes of progress in one answer."""
SECONDS = 10.0
"""That a browser may take to say what it wants."""


def serve(run: Path, port: int = 0, announce: Callable[[str], Any] = print) -> None:
    """Serve the page of a run until Ctrl-C.

    Args:
        run: its folder.
        port: of 127.0.0.1; 0 for a free one.
        announce: is told the address, and that the server has stopped.

    Raises:
        ValueError: if the folder holds no run, or the port is taken.
    """
    with server_of(run, port) as server:
        try:
            announce(f"{run} is shown at {server.address}; stop with Ctrl-C.")
            server.serve_forever()
        except KeyboardInterrupt:
            announce("stopped.")


def server_of(run: Path, port: int = 0) -> "Server":
    """The server of a run's page, bound to its port but not yet at work.

    Args:
        run: its folder.
        port: of 127.0.0.1; 0 for a free one.

    Raises:
        ValueError: if the folder holds no run, or the port cannot be had.
    """
    read_facts(run)
    try:
        return Server(run, port)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(
            f"port={port} cannot be used: {why}; give another, or 0 for a free one."
        ) from None


class Server(http.server.ThreadingHTTPServer):
    """Serves the page of one run on the loopback.

    Args:
        run: its folder.
        port: to listen on.
    """

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, run: Path, port: int):
        self.run = run
        super().__init__((ADDRESS, port), _Handler)

    @property
    def address(self) -> str:
        """Of the page."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    timeout = SECONDS
    server_version = "recollect"
    sys_version = ""

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        # A foreign name that resolves to the loopback must not let its pages read the run.
        if self.headers.get("Host") not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            return self._answer(HTTPStatus.FORBIDDEN, "This host is not served.")
        # Only these two exact paths: nothing of a request becomes part of a file's name.
        asked = urlsplit(self.path)
        if asked.path == "/":
            return self._page()
        if asked.path == f"/{PROGRESS}":
            return self._progress(asked.query)
        return self._answer(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _refuse(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered.")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse

    def _page(self) -> None:
        try:
            text = page(read_runs([self.server.run]), live=True)
        except ValueError as error:
            # The folder is being overwritten, for example; the next request may find it whole.
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return self._answer(HTTPStatus.OK, text, "text/html")

    def _progress(self, query: str) -> None:
        start = parse_qs(query).get("from", ["0"])[-1]
        if not (start.isascii() and start.isdigit() and len(start) < 16):
            return self._answer(HTTPStatus.BAD_REQUEST, "from= takes a number of bytes.")
        return self._answer(HTTPStatus.OK, gained(self.server.run, int(start)), "text/csv")

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", f"{POLICY}; frame-ancestors 'none'")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: a page asks every two seconds."""


def gained(run: Path, start: int) -> str:
    """The whole lines that a run's progress holds from an offset on.

    Args:
        run: its folder.
        start: in bytes. Beyond the end, as after a run that began anew: all lines.

    Returns:
        Lines, at most about a mebibyte of them; empty if there are none.
    """
    try:
        with (run / PROGRESS).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(start if start <= size else 0)
            data = file.read(MOST)
    except OSError:
        return ""
    return data[: data.rfind(b"\n") + 1].decode("utf-8", errors="replace")
