"""Delivery of notices to a URL: signed, in a separate thread, and repeated a bounded number of times."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread
from time import time
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_text, write_whole
from rollmux_env.validation_errors import one_line

WEBHOOK = "webhook.json"
DELAYS_S = (1.0, 5.0, 25.0, 125.0, 600.0)  # waits before a delivery is repeated
_MOST = 1000  # notices that wait for their delivery
_ANSWERS_S = 10.0
_AGAIN = (408, 425, 429)  # refusals that may pass


@dataclass(frozen=True)
class Target:
    """The receiver of notices.

    Attributes:
        url: URL to which they are posted, http:// or https://.
        secret: Key of their signatures.
    """

    url: str
    secret: str


_FILE = TypeAdapter(Target)


def set_target(folder: Path, url: str) -> str:
    """Let a service post its notices to a URL, and return a new secret. A running service follows at once.

    Args:
        folder: Folder of the service.
        url: URL, http:// or https://.

    Raises:
        InputError: If the URL is invalid, or the file cannot be written; one line.
    """
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not url.isprintable() or " " in url:
        raise InputError(f"{one_line(url, 200)}: must be a URL that begins with http:// or https://, without a user")
    target = Target(url, secrets.token_urlsafe(32))
    write_whole(folder / WEBHOOK, _FILE.dump_json(target, indent=1), private=True)
    (folder / WEBHOOK).chmod(0o600)
    return target.secret


def target_of(folder: Path) -> Target | None:
    """Return the receiver of a service's notices, or None if there is none.

    Raises:
        InputError: If the file cannot be read; one line.
    """
    path = folder / WEBHOOK
    if not os.path.lexists(path):
        return None
    try:
        return _FILE.validate_json(read_text(path))
    except ValidationError:
        raise InputError(f"{one_line(str(path), 4096)}: cannot be read; `rollmux webhook set URL` writes it") from None


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the value of the header `X-RollMux-Signature`: HMAC-SHA256 of the timestamp, a dot and the body."""
    return f"sha256={hmac.new(secret.encode(), timestamp.encode() + b'.' + body, sha256).hexdigest()}"


class Webhook:
    """Sender of notices. None is delivered while the service has no receiver.

    Args:
        folder: Folder of the service.
        say: Callback, from another thread, for a line about a notice that could not be delivered.
        delays_s: Waits before a delivery is repeated, in seconds. After the last one the notice is dropped.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], delays_s: tuple[float, ...] = DELAYS_S) -> None:
        self._folder, self._say, self._delays_s = folder, say, delays_s
        self._queue: Queue[bytes | None] = Queue(_MOST)
        self._closing = Event()
        self._thread: Thread | None = None
        self._taken = self._handled = 0  # notices; the first is changed by callers, the second by the thread

    @property
    def is_idle(self) -> bool:
        """Whether every notice has been delivered or dropped."""
        return self._taken == self._handled

    def put(self, notice: Mapping[str, Any]) -> None:
        """Deliver a notice soon. If too many wait already, it is dropped."""
        if not os.path.lexists(self._folder / WEBHOOK):
            return
        if self._thread is None:
            self._thread = Thread(target=self._deliver_all, name="rollmux-webhook", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(json.dumps(notice).encode())
        except Full:
            self._say(f"webhook: {_MOST} notices wait; one is dropped: {notice.get('text', '')}")
        else:
            self._taken += 1

    def close(self) -> None:
        """End after the delivery in progress. What waits is dropped."""
        self._closing.set()
        with contextlib.suppress(Full):
            self._queue.put_nowait(None)

    def _deliver_all(self) -> None:
        while (body := self._queue.get()) is not None and not self._closing.is_set():
            self._deliver(body)
            self._handled += 1

    def _deliver(self, body: bytes) -> None:
        for delay_s in (*self._delays_s, None):
            try:
                target = target_of(self._folder)
                problem, again = ("", False) if target is None else _post(target, body)
            except InputError as error:
                problem, again = str(error), False
            if not problem:
                return
            if not again or delay_s is None:
                self._say(f"webhook: a notice is dropped: {problem}")
                return
            if self._closing.wait(delay_s):
                return


def _post(target: Target, body: bytes) -> tuple[str, bool]:
    """Post a notice, and return why it was not taken, or an empty text, and whether it may be taken later."""
    parts, timestamp = urlsplit(target.url), str(int(time()))
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Content-Type": "application/json", "User-Agent": "rollmux", "X-RollMux-Timestamp": timestamp}
    headers["X-RollMux-Signature"] = signature(target.secret, timestamp, body)
    try:
        with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=_ANSWERS_S)) as connection:
            connection.request("POST", parts._replace(scheme="", netloc="", fragment="").geturl() or "/", body, headers)
            status = connection.getresponse().status
    except (OSError, HTTPException, ValueError) as error:
        return f"{parts.hostname}: {one_line(str(error) or type(error).__name__, 200)}", True
    return ("", False) if 200 <= status < 300 else (f"{parts.hostname} answers {status}", status >= 500 or status in _AGAIN)
