"""A headless Chromium for tests of pages, driven over its DevTools protocol."""

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60.0
"""That a loaded machine may take to start a browser, or to show something."""


def chromium() -> str | None:
    """The program, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """A page that is open in the browser.

    Args:
        connection: to the page.
    """

    def __init__(self, connection: ClientConnection):
        self.connection = connection
        self.errors: list[str] = []
        """What the console has complained about."""
        self._number = 0
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and note the errors that are reported meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self.connection.send(json.dumps(message))
        while True:
            answer = json.loads(self.connection.recv(timeout=SECONDS))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        details = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(details["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and details["entry"]["level"] == "error":
            self.errors.append(details["entry"]["text"])
        if event.get("method") == "Runtime.consoleAPICalled" and details["type"] == "error":
            self.errors.append(json.dumps(details["args"]))

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a page of a size in pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=address)
        self.wait(lambda: self.run("document.readyState") == "complete")

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def hover(self, selector: str, part: float = 0.5) -> None:
        """Move the pointer to a place in an element, from left (0) to right (1)."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{found}.scrollIntoView({{block: 'center'}})")
        box = self.run(f"{found}.getBoundingClientRect().toJSON()")
        x = box["left"] + part * box["width"]
        y = box["top"] + box["height"] / 2
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str) -> None:
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def wait(self, condition: Callable[[], Any], seconds: float = SECONDS) -> None:
        """Until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the page did not get there in time"
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """Write all of the page as PNG."""
        import base64

        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def tab() -> Iterator[Tab]:
    """A context with a page of a browser of its own."""
    program = chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
        more = ("--no-first-run", f"--user-data-dir={folder}", "about:blank")
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen([program, *options, *more], stdout=log, stderr=log)
        try:
            with connect(_page_address(Path(folder)), max_size=None) as connection:
                yield Tab(connection)
        finally:
            process.terminate()
            process.wait(SECONDS)


def _page_address(folder: Path) -> str:
    """Where the browser's first page listens; it writes its port to a file."""
    from urllib.request import urlopen

    end = time.monotonic() + SECONDS
    port_file = folder / "DevToolsActivePort"
    while time.monotonic() < end:
        with contextlib.suppress(OSError, IndexError, StopIteration):
            port = int(port_file.read_text().split()[0])
            with urlopen(f"http://127.0.0.1:{port}/json") as answer:
                targets = json.load(answer)
            return next(one for one in targets if one["type"] == "page")["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise AssertionError("Chromium did not start: " + (folder / "log").read_text())
