"""A headless Chromium that looks at a file, driven through a pair of pipes.

The DevTools protocol speaks JSON; over `--remote-debugging-pipe` a zero byte ends each message. So
no port is opened, and no library is needed.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pytest

_PATIENCE_S = 120.0
"""For a machine that is busy with something else; nothing here takes a tenth of it otherwise."""

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # because tests run as root in CI, on a file that we wrote
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


class BrowserError(Exception):
    """The browser did not answer, or answered with an error."""


@dataclass
class Browser:
    """A running Chromium; ends with the `with` block."""

    program: Path
    _next: int = 0
    _read: int = -1
    _write: int = -1
    _rest: bytes = b""
    _events: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> Browser:
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser reads from 3 and writes to 4, whatever numbers our ends have.
        line = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        profile = f"--user-data-dir={self._home.name}/profile"
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", str(self.program), *_ARGUMENTS, profile],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_read, to_write),
            env={**os.environ, "HOME": self._home.name},
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._write)
        os.close(self._read)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._home.cleanup()

    def open(self, file: Path, width: int, scheme: Literal["light", "dark"] = "light") -> Page:
        """Show a file in a window of this width, and wait until it is loaded."""
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"], target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        page.resize(width, 900)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        page.ask("Emulation.setEmulatedMedia", {"features": media})
        page.ask("Page.navigate", {"url": file.as_uri()})
        page.wait_until("Page.loadEventFired")
        return page

    def ask(
        self, method: str, params: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Send a command and return its result."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        self._send(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def _send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._write, data) :]

    def receive(self) -> dict[str, Any]:
        """Return the next message."""
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise BrowserError(f"{self.program} said nothing for {_PATIENCE_S:.0f} s")
            some = os.read(self._read, 1 << 20)
            if not some:
                raise BrowserError(f"{self.program} ended: status {self._process.wait(30)}")
            self._rest += some
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def events(self, session: str) -> list[dict[str, Any]]:
        """Everything that a page has reported so far."""
        return [event for event in self._events if event.get("sessionId") == session]

    def keep(self, event: dict[str, Any]) -> None:
        """Remember an event."""
        self._events.append(event)


@dataclass
class Page:
    """A page that is shown."""

    browser: Browser
    session: str
    target: str

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.browser.ask("Target.closeTarget", {"targetId": self.target})

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.browser.ask(method, params, self.session)

    def wait_until(self, method: str) -> None:
        while not any(event["method"] == method for event in self.browser.events(self.session)):
            self.browser.keep(self.browser.receive())

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str) -> Any:
        """Return the value of a script; promises are waited for. It is ours, not the page's."""
        found = self.ask(
            "Runtime.evaluate",
            {"expression": script, "awaitPromise": True, "returnByValue": True},
        )
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def picture(self, to: Path) -> Path:
        """Write a screenshot of the whole page."""
        shot = self.ask("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
        to.write_bytes(base64.b64decode(shot["data"]))
        return to

    def pdf(self, to: Path) -> Path:
        """Print the page as its own style says."""
        printed = self.ask("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": False})
        to.write_bytes(base64.b64decode(printed["data"]))
        return to

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and whatever the browser blocked."""
        return [
            words
            for event in self.browser.events(self.session)
            if (words := _complaint(event["method"], event.get("params", {}))) is not None
        ]

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.browser.events(self.session)
            if event["method"] == "Network.requestWillBeSent"
        ]


def _complaint(method: str, params: dict[str, Any]) -> str | None:
    """What an event complains of, or None."""
    if method == "Runtime.exceptionThrown":
        return str(params["exceptionDetails"])[:500]
    if method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
        return str(params["args"])[:500]
    if method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
        return str(params["entry"]["text"])
    return None


def tool(name: str) -> Path:
    """A tool's path; without it the tests are skipped, or fail where they are required."""
    value = os.environ.get(name)
    if value and Path(value).is_file():
        return Path(value)
    reason = f"{name} names no file: scripts/test sets it (scripts/browser_tools.sh)"
    if os.environ.get("EDGEAGENT_REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
