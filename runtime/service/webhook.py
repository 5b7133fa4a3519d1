"""Delivery of notices to a URL, with a signature."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from socket import SHUT_RDWR, socket
from string import punctuation
from threading import Timer
from time import time
from urllib.parse import quote, urlsplit

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_text, write_whole
from rollmux_env.validation_errors import one_line
from runtime.service.sender import Sender

WEBHOOK = "webhook.json"
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
        shown = "the URL of the webhook" if "@" in url else one_line(url, 200)
        raise InputError(f"{shown}: must be a URL that begins with http:// or https://, without a user, or mailto: and an address")
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


class Webhook(Sender):
    """Sender of signed notices to a URL. Arguments are those of `Sender`."""

    name, file = "webhook", WEBHOOK

    def send(self, body: bytes) -> tuple[str, bool]:
        """Post a notice; see `Sender.send`."""
        target = target_of(self._folder)
        return ("", False) if target is None else _post(target, body)


def _post(target: Target, body: bytes) -> tuple[str, bool]:
    """Post a notice, and return why it was not taken, or an empty text, and whether it may be taken later."""
    parts, timestamp = urlsplit(target.url), str(int(time()))
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Content-Type": "application/json", "User-Agent": "rollmux", "X-RollMux-Timestamp": timestamp}
    headers["X-RollMux-Signature"] = signature(target.secret, timestamp, body)
    where = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
    try:
        with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=_ANSWERS_S)) as connection:
            connection.connect()
            with _ended_after(_ANSWERS_S, connection.sock):
                connection.request("POST", quote(where, safe=punctuation), body, headers)  # HTTP takes no letters but ASCII's
                status = connection.getresponse().status
    except (OSError, HTTPException, ValueError) as error:
        return f"{parts.hostname}: {one_line(str(error) or type(error).__name__, 200)}", True
    return ("", False) if 200 <= status < 300 else (f"{parts.hostname} answers {status}", status >= 500 or status in _AGAIN)


@contextlib.contextmanager
def _ended_after(seconds: float, connection: socket) -> Iterator[None]:
    """End a connection after a time. Its own timeout is that of each read, so that a byte now and then would hold the sender."""

    def end() -> None:
        with contextlib.suppress(OSError):  # it may be closed already
            connection.shutdown(SHUT_RDWR)

    timer = Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
