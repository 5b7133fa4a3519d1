"""The unit and the proxy of examples/deploy are what systemd and nginx take, and the backup of the guide is whole."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from runtime.service.address import HTTP, SERVICE
from runtime.service.mail import MAIL
from runtime.service.operations_log import OPERATIONS
from runtime.service.tokens import COMMAND_TOKENS, TOKENS
from runtime.service.webhook import WEBHOOK

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian: systemd)")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "rollmux.service"
    unit.write_text((DEPLOY / unit.name).read_text().replace("/opt/rollmux/bin/rollmux", shutil.which("true") or ""))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])


@pytest.mark.skipif(None in map(shutil.which, ("nginx", "openssl")), reason="nginx is not installed (Debian: nginx-light)")
def test_nginx_takes_the_proxy(tmp_path: Path) -> None:
    key, certificate, config = (tmp_path / name for name in ("key.pem", "certificate.pem", "nginx.conf"))
    make = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], capture_output=True, check=True)
    text = (DEPLOY / config.name).read_text().replace("/etc/ssl/rollmux.pem", str(certificate))
    config.write_text(f"pid {tmp_path}/pid;\nerror_log {tmp_path}/log;\n" + text.replace("/etc/ssl/rollmux.key", str(key)))
    done = subprocess.run(["nginx", "-t", "-c", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_backup_has_the_files_that_a_service_keeps(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "operate.md").read_text()
    (command,) = (line.removeprefix("$ ") for line in page.splitlines() if line.startswith("$ cp -p "))
    folder, backup = tmp_path / "service", tmp_path / "backup"
    folder.mkdir()
    backup.mkdir()
    kept = {TOKENS, COMMAND_TOKENS, HTTP, WEBHOOK, MAIL, OPERATIONS}
    for name in {*kept, SERVICE}:
        (folder / name).touch(0o600)
    done = subprocess.run(
        ["bash", "-c", command.replace("/backup", str(backup))], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name: path.stat().st_mode & 0o777 for path in backup.iterdir()} == dict.fromkeys(kept, 0o600)
