"""The wheel and the source distribution, in an empty environment outside the clone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_package import ROOT, relative_links

QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions of both packages."""
    pytest.importorskip("build", reason="build is not installed: `make dist` does it")
    folder = tmp_path_factory.mktemp("dist")
    for source in (ROOT, ROOT / "clients" / "python"):
        subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(source)], env=QUIET, check=True)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_is_built_runs_in_an_empty_environment(built: Path, kind: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "there"], cwd=tmp_path, check=True)
    programs = tmp_path / "there" / "bin"
    install = [
        str(programs / "pip"),
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
        *map(str, built.glob(f"rollmux-[0-9]{kind}")),
    ]
    subprocess.run(install, cwd=tmp_path, env=QUIET, check=True)
    alone = [str(programs / "pip"), "install", "--quiet", "--target", "client", *map(str, built.glob(f"rollmux_client-{kind}"))]
    subprocess.run(alone, cwd=tmp_path, env=QUIET, check=True)

    def run(*words: str) -> str:
        program = [str(programs / words[0]), *words[1:]]
        return str(subprocess.run(program, cwd=tmp_path, env=QUIET, check=True, capture_output=True, text=True).stdout)

    assert "rollmux" in run("rollmux", "bench", "quickstart")
    assert run("rollmux", "examples", "copy", "first_fit") == "first_fit.py\n"
    assert "first_fit:FirstFit" in run("rollmux", "bench", "quickstart", "-p", "solo", "-p", "first_fit:FirstFit")
    told = "from importlib.metadata import metadata as of; print(of(%r)['Description'])"
    described = run("python", "-c", f"import rollmux_client, rollmux_env.envs; {told % 'rollmux'}")
    described += run("python", "-c", f"import sys; sys.path[:0] = ['client']; {told % 'rollmux-client'}")
    assert "# RollMux" in described and "# rollmux-client" in described
    assert relative_links(described) == []
