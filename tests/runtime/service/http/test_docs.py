"""The lines of docs/reference/service_api.md work when they are pasted into a shell, one after the other, without Ray."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rollmux_client import ENDED

import rollmux
from runtime.service.address import ServiceAddress, announce
from runtime.service.http.operations import OPERATIONS
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_jobs import KEYS

PAGE = (Path(rollmux.__file__).parent / "docs" / "reference" / "service_api.md").read_text()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed (Debian: curl)")
def test_the_lines_of_the_page_work_when_pasted(tmp_path: Path) -> None:
    one = Served(tmp_path / "service", with_classes=False)
    try:
        announce(one.folder, ServiceAddress(one.server.url, one.token, None))
        script = "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.S | re.M))
        environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "DIR": str(one.folder)}
        done = subprocess.run(
            ["bash", "-eu"], input=script, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        answers = [json.loads(line) for line in done.stdout.splitlines() if line]
        assert len(answers) >= 10 and not any("error" in value for value in answers), answers
        jobs = {job["id"]: job for job in one.ask("GET", "/v1/status").value["jobs"]}
        assert {name: (job["state"], job["iteration"]) for name, job in jobs.items()} == {
            "mine": ("done", 1),
            "unwanted": ("cancelled", 0),
        }
        assert all(job["state"] in ENDED for job in jobs.values())
    finally:
        one.close()


def test_every_request_and_every_key_of_a_job_is_on_the_page() -> None:
    for operation in OPERATIONS:
        last = operation.path.rpartition("/")[2].strip("{}")
        assert re.search(rf"\b{last}\b", PAGE), operation.path
    assert {key for key in KEYS if f"`{key}`" not in PAGE} == set()
