"""Notebooks run from their first cell to the last, and are stored without outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.test_package import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_named_on_its_page(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert notebook["nbformat"] == 4 and code
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == [], "`make notebooks` strips them"
    assert notebook["cells"][0]["source"][0].startswith("# ")
    assert f"examples/notebooks/{path.name}" in (ROOT / "docs" / "guides" / "notebooks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "markdown")
    assert [to for to in re.findall(r"\]\(([^)#]+)", text) if not to.startswith("http") and not (path.parent / to).exists()] == []


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # of what draws notebooks and speaks to kernels
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: `make notebooks` does it")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: `make notebooks` does it")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: `make notebooks` does it")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert any("image/png" in out.get("data", {}) for cell in code for out in cell.outputs) == (path.stem != "2_write_a_policy")
