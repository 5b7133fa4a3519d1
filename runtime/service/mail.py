"""Delivery of notices as mail, by the `sendmail` of the service's machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from contextlib import suppress
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from rollmux_env.errors import InputError
from rollmux_env.files import read_text, write_whole
from rollmux_env.validation_errors import one_line
from runtime.service.sender import Sender

MAIL = "mail.json"
_ADDRESS = re.compile(r"[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}", re.ASCII)
_FOLDERS = ("/usr/sbin", "/usr/lib")  # places of sendmail that are seldom in the PATH of a service
_TAKES_S = 60.0
_CLOSES_S = 2.0  # time for a mail in progress when the service ends
_AGAIN = (os.EX_UNAVAILABLE, os.EX_OSERR, os.EX_IOERR, os.EX_TEMPFAIL)  # statuses that may pass


def set_address(folder: Path, address: str) -> None:
    """Let a service send its notices to an address. A running service follows at once.

    Args:
        folder: Folder of the service.
        address: Address, such as `ops@example.org`.

    Raises:
        InputError: If it is no address, there is no sendmail here, or the file cannot be written; one line.
    """
    if not _ADDRESS.fullmatch(address) or address.startswith("-"):
        raise InputError(f"{one_line(address, 200)}: must be an address such as ops@example.org")
    _sendmail()
    write_whole(folder / MAIL, json.dumps({"address": address}).encode(), private=True)


class Mail(Sender):
    """Sender of notices to an address. Arguments are those of `Sender`."""

    name, file = "mail", MAIL
    _process: Popen[bytes] | None = None  # the last sendmail

    def send(self, body: bytes) -> tuple[str, bool]:
        """Hand a notice to sendmail; see `Sender.send`."""
        address = _address_of(self._folder)
        if address is None:
            return "", False
        command = [_sendmail(), "-i", "--", address]
        message = _message(address, body)
        try:
            with Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=PIPE, start_new_session=True, cwd="/") as process:
                self._process = process
                try:
                    _, errors = process.communicate(message, _TAKES_S)
                except TimeoutExpired:
                    _kill(process)
                    raise
        except (OSError, TimeoutExpired) as error:
            return f"sendmail: {one_line(str(error), 200)}", True
        said = one_line(errors.decode(errors="replace").strip(), 200)
        problem = f"sendmail ends with status {process.returncode}" + (f": {said}" if said else "")
        return (problem, process.returncode in _AGAIN) if process.returncode else ("", False)

    def close(self) -> None:
        """End after the delivery in progress, which is killed if it takes long. What waits is dropped."""
        super().close()
        if self._thread is not None:
            self._thread.join(_CLOSES_S)
            if self._thread.is_alive() and self._process is not None:
                _kill(self._process)


def _kill(process: Popen[bytes]) -> None:
    """Kill a sendmail and its children: it may be a script, whose programs would hang on."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _address_of(folder: Path) -> str | None:
    path = folder / MAIL
    if not os.path.lexists(path):
        return None
    try:
        address = json.loads(read_text(path))["address"]
        if not _ADDRESS.fullmatch(address):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{one_line(str(path), 4096)}: cannot be read; `rollmux webhook set mailto:ADDRESS` writes it") from None
    return str(address)


def _sendmail() -> str:
    """Return the path of sendmail."""
    path = shutil.which("sendmail", path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_FOLDERS)))
    if path is None:
        raise InputError("mail: this machine has no sendmail; postfix, exim, msmtp-mta and nullmailer bring one")
    return path


def _message(address: str, body: bytes) -> bytes:
    """Return a mail about a notice."""
    notice = json.loads(body)
    message = EmailMessage(SMTP)
    message["To"] = address
    message["Subject"] = f"rollmux: {notice['kind'].replace('_', ' ')}: {notice['job'] or notice['user']}"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n".join(f"{key}: {value}" for key, value in notice.items() if value) + "\n")
    return message.as_bytes(policy=SMTP.clone(linesep="\n"))
