"""A real headless Chromium, driven over a pipe by the DevTools protocol; nothing but the browser itself is needed for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here (Debian: chromium)")
_PATIENCE_S = 300.0
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars")
_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions")
# The browser reads commands from descriptor 3 and answers on 4.
_EXEC = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3); os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A browser that has started.

    Args:
        folder: an empty one, for its profile.
    """

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        flags = (*_FLAGS, *_QUIET, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank")
        command = [sys.executable, "-c", _EXEC, str(read), str(write), CHROMIUM, *flags]
        environment = os.environ | {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        with open(folder / "output.txt", "wb") as output:
            self._process = subprocess.Popen(command, pass_fds=(read, write), stdout=output, stderr=output, env=environment)
        os.close(read)
        os.close(write)
        self._buffer = b""
        self._number = 0
        self._contexts: list[str] = []  # of the tabs
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer; what happens meanwhile is appended to `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until_s = monotonic() + _PATIENCE_S
        while True:
            answer = self._next(until_s)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self, until_s: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select([self._read], [], [], max(0.0, until_s - monotonic()))[0], "the browser does not answer"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def make_context(self) -> str:
        """Return the id of a new context, which shares nothing with the others."""
        self._contexts.append(self.call("Target.createBrowserContext")["browserContextId"])
        return self._contexts[-1]

    def close_tabs(self) -> None:
        """Close all tabs: a page that is left open draws and asks as long as the browser runs."""
        for context in self._contexts:
            self.call("Target.disposeBrowserContext", browserContextId=context)
        self._contexts.clear()
        self.events.clear()

    def close(self) -> None:
        """End it and all of its processes."""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)


class Tab:
    """A page of a browser.

    Args:
        width, height: of what is seen, pixels. dark: the user prefers dark colours.
    """

    def __init__(self, browser: Browser, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self._browser = browser
        context = browser.make_context()
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask this page for something."""
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """What an expression is in the page; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until something holds in the page."""
        look = f"let it = false; try {{ it = {expression}; }} catch {{}} if (it) yes(1); else setTimeout(look, 20);"
        patience = f"setTimeout(() => yes(0), {1000 * _PATIENCE_S / 2});"
        holds = self.value(f"new Promise((yes) => {{ const look = () => {{ {look} }}; look(); {patience} }})")
        assert holds, (expression, self.value("document.body.innerText"))

    def type_into(self, selector: str, text: str) -> None:
        """Type into a field, as a user does."""
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key by its name."""
        code = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self) -> bytes:
        """All of the page as a PNG."""
        return b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"])

    def happened(self, method: str) -> list[dict[str, Any]]:
        """The parameters of the events of a kind so far, of this page."""
        self.value("0")  # what has happened is told before
        own = (event for event in self._browser.events if event.get("sessionId") == self._session)
        return [dict(event["params"]) for event in own if event.get("method") == method]

    def problems(self) -> list[str]:
        """Errors of scripts, and what the page's own policy has kept it from."""
        thrown = [str(event["exceptionDetails"]) for event in self.happened("Runtime.exceptionThrown")]
        entries = (event["entry"] for event in self.happened("Log.entryAdded"))
        return thrown + [entry["text"] for entry in entries if entry["level"] == "error" and entry["source"] != "network"]

    def requests(self) -> list[str]:
        """Addresses that it has asked for."""
        return [event["request"]["url"] for event in self.happened("Network.requestWillBeSent")]


@contextlib.contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser that ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()
