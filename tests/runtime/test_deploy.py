"""The files in examples/deploy that a cluster is started with: what they would run, without a cluster."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

import rollmux
from policies.registry import make_policy
from rollmux_env.errors import InputError
from runtime.coordinator.run_plan import placement_name
from runtime.jobs.file import load_cluster
from runtime.machines.hosts import load_hosts, nodes_of_hosts
from runtime.machines.nodes import RESOURCE, find_nodes
from runtime.service.address import parse_listen

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
PRINTS = '#!/usr/bin/env bash\necho "$(basename "$0") $RAY_AUTH_MODE: $*"\n'


def started(words: list[str]) -> dict[str, Any]:
    """The custom resources of a `ray start`."""
    given = [word.partition("=")[2] for word in words if word.startswith("--resources=")]
    return dict(json.loads(given[0])) if given else {}


def cluster(*resources: dict[str, Any]) -> list[dict[str, Any]]:
    """Machines as Ray lists them."""
    return [
        {"Alive": True, "NodeID": str(k), "NodeManagerHostname": "elsewhere", "Resources": {"CPU": 4.0, "memory": 8e9, **one}}
        for k, one in enumerate(resources)
    ]


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder of commands that print what they are asked, in place of those of Ray, Slurm and RollMux."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ray", "rollmux"):
        (folder / name).write_text(PRINTS)
    (folder / "hostname").write_text("#!/usr/bin/env bash\necho '10.0.0.12 172.17.0.1 '\n")
    (folder / "srun").write_text('#!/usr/bin/env bash\necho "srun $1" >&2; while [[ $1 == -* ]]; do shift; done; exec "$@"\n')
    (folder / "getent").write_text("#!/usr/bin/env bash\necho '10.1.0.12 STREAM rollout-0'; echo '10.1.0.12 DGRAM'\n")
    (folder / "scontrol").write_text("#!/usr/bin/env bash\ntr , '\\n' <<<\"$3\"\n")
    (folder / "python").write_text('#!/usr/bin/env bash\necho "waits for $2"\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    return folder


def bash(tools: Path, *words: str, status: int = 0, **environment: str) -> list[str]:
    """Lines that a script prints."""
    known = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tools.parent), "RAY_TMPDIR": str(tools.parent), **environment}
    done = subprocess.run(["bash", *words], cwd=tools.parent, env=known, capture_output=True, text=True, timeout=20)
    assert done.returncode == status, done.stderr
    return done.stdout.splitlines() + done.stderr.splitlines()


def test_a_machine_joins_as_a_node_of_the_pool_that_it_is_started_for(tools: Path) -> None:
    script = str(DEPLOY / "node.sh")
    (head,) = bash(tools, script, "head", "--port=6399")
    assert head.startswith("ray token: start --head ") and head.endswith(" --port=6399")
    assert not started(shlex.split(head, posix=False))
    resources = []
    for pool, resource in RESOURCE.items():
        (line,) = bash(tools, script, pool, "10.0.0.10", "--block")
        words = line.split(": ", 1)[1].replace('": 1', '":1').split()
        assert "--address=10.0.0.10:6379" in words and words[-1] == "--block"
        resources.append(started(words))
        assert resources[-1] == {resource: 1}
    assert [node.pool for node in find_nodes(cluster({}, *resources), {}, "0")] == ["rollout", "training"]
    bash(tools, script, "trainer", "10.0.0.10", status=2)


def test_only_its_user_gets_to_the_folder_of_a_machines_ray(tools: Path) -> None:
    script, folder = str(DEPLOY / "node.sh"), tools.parent / f"rollmux-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    (head,) = bash(tools, script, "head")
    assert f" --temp-dir={folder}/ray " in head and folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    folder.symlink_to(tools)
    assert bash(tools, script, "rollout", "10.0.0.10", status=2) == [f"node.sh: {folder} is not this user's"]


def test_ray_up_takes_the_file_and_every_worker_finds_its_pool(tools: Path) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    file = YAML(typ="safe").load(DEPLOY / "ray-up.yaml")
    config = prepare_config(dict(file))
    validate_config(config)
    assert config["max_workers"] == len(file["provider"]["worker_ips"])
    assert (DEPLOY / file["file_mounts"]["~/rollmux-node.sh"]).is_file()
    shutil.copy(DEPLOY / "node.sh", tools.parent / "rollmux-node.sh")
    command = file["worker_start_ray_commands"][-1].replace("/opt/rollmux/bin", str(tools))
    assert "rollout_node" in bash(tools, "-c", command, RAY_HEAD_IP="10.0.0.10")[0]
    (tools / "hostname").write_text("#!/usr/bin/env bash\necho '10.0.0.21 '\n")
    assert "training_node" in bash(tools, "-c", command, RAY_HEAD_IP="10.0.0.10")[0]
    assert "start --head" in bash(tools, "-c", file["head_start_ray_commands"][-1].replace("/opt/rollmux/bin", str(tools)))[0]


def test_the_kubernetes_manifest_has_both_pools_and_a_token() -> None:
    spec = YAML(typ="safe").load(DEPLOY / "kuberay.yaml")["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert all(isinstance(value, str) for value in spec["headGroupSpec"]["rayStartParams"].values())
    resources = []
    for group in spec["workerGroupSpecs"]:
        own = json.loads(shlex.split(group["rayStartParams"]["resources"])[0])  # the operator puts it into a shell command
        resources += [own] * group["replicas"]
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        shared = next(mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm")
        assert {"name": shared, "emptyDir": {"medium": "Memory"}} in pod["volumes"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {part["name"] for part in pod["volumes"]}
    found = find_nodes(cluster({}, *resources), {}, "0")
    assert [node.name for node in found] == ["rollout-0", "rollout-1", "training-0"]
    with pytest.raises(InputError, match="no training node"):
        find_nodes(cluster({}, resources[0]), {}, "0")


def test_the_slurm_script_brings_up_both_partitions_and_goes_on_with_a_run_that_was_cut_off(tools: Path) -> None:
    script = tools.parent / "slurm.sbatch"
    script.write_text((DEPLOY / "slurm.sbatch").read_text().replace("/opt/rollmux/bin", str(tools)))
    shutil.copy(DEPLOY / "node.sh", tools.parent)
    (tools.parent / "jobs.yaml").touch()
    slurm: dict[str, Any] = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST_HET_GROUP_0": "a,b", "SLURM_JOB_NODELIST_HET_GROUP_1": "c"}
    lines = bash(tools, str(script), "jobs.yaml", **slurm)
    assert lines[0].startswith("ray token: start --head ") and "--node-ip-address=10.1.0.12" in lines[0]
    assert {"srun --het-group=0", "srun --het-group=1", "waits for 4"} <= set(lines)
    joined = [line for line in lines if line.startswith("ray token: start --address=10.1.0.12:6379")]
    assert [sum(resource in line for line in joined) for resource in RESOURCE.values()] == [1, 1]
    out = tools.parent / "jobs-run"
    assert f"rollmux token: run {tools.parent / 'jobs.yaml'} --out {out} --address 10.1.0.12:6379" in lines
    assert not list(tools.parent.glob(".rollmux-token-*"))
    out.mkdir()
    (out / "journal.sqlite").touch()
    assert f"rollmux token: run --resume {out} --address 10.1.0.12:6379" in bash(tools, str(script), "jobs.yaml", **slurm)
    (tools / "getent").write_text("#!/usr/bin/env bash\necho '127.0.1.1 STREAM'\n")  # as a name in /etc/hosts may stand for
    assert bash(tools, str(script), "jobs.yaml", status=2, **slurm)[-1].endswith("'127.0.1.1': set ROLLMUX_HEAD to one")
    asked = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH --partition")]
    assert len(asked) == 2 and all(" --mem=0 " in line for line in asked)  # else a job gets the share of a few cores


def served_by_recipes() -> dict[str, list[str]]:
    """Arguments after `rollmux serve` of each recipe that starts a service."""
    container = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    steps = dict(line.split(maxsplit=1) for line in container if line and not line.startswith("#"))
    unit = (DEPLOY / "rollmux.service").read_text(encoding="utf-8").replace("\\\n", " ")
    task = YAML(typ="safe", pure=True).load(DEPLOY / "skypilot.yaml")
    commands = {
        "Containerfile": json.loads(steps["ENTRYPOINT"]) + json.loads(steps["CMD"]),
        "rollmux.service": shlex.split(next(line for line in unit.splitlines() if line.startswith("ExecStart="))),
        "skypilot.yaml": shlex.split(task["run"].replace("\\\n", " ")),
    }
    assert all(words[0].endswith("rollmux") and words[1] == "serve" for words in commands.values())
    return {name: words[2:] for name, words in commands.items()}


def test_every_recipe_of_a_service_has_the_policy_and_a_cluster_for_a_team() -> None:
    recipes = served_by_recipes()
    starting = {path.name for path in DEPLOY.iterdir() if re.search(r'rollmux serve /|rollmux serve ~|"serve", ', path.read_text())}
    assert starting == recipes.keys()
    guide = (ROOT / "docs" / "guides" / "serve.md").read_text(encoding="utf-8")
    (recommended,) = re.findall(r"\$ rollmux serve rollmux-service --no-ray --policy (\S+) --cluster", guide)
    make_policy(placement_name(recommended))
    group = typer.main.get_command(rollmux.command())
    serve = group.commands["serve"]  # type: ignore[attr-defined] # it is a group
    for name, words in recipes.items():
        with serve.make_context("serve", [*words]) as context:
            given = context.params
            assert (name, given["policy"]) == (name, recommended)
            assert given["no_ray"] and given["cluster"].name == "cluster.yaml"
            assert parse_listen(given["http"], beyond_loopback=given["beyond_loopback"]) is not None
    hosts = load_hosts(DEPLOY / "cluster.yaml")
    assert hosts is not None and len(nodes_of_hosts(hosts, load_cluster(DEPLOY / "cluster.yaml"))) == 3


def test_the_container_and_the_cloud_serve_at_their_port() -> None:
    """Neither an image nor a machine is made here."""
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    steps = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    assert list(steps) == ["FROM", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"]
    task = YAML(typ="safe", pure=True).load(DEPLOY / "skypilot.yaml")
    assert task.keys() == {"name", "resources", "workdir", "setup", "run"}
    assert task["resources"]["ports"] == int(steps["EXPOSE"])
    recipes = served_by_recipes()
    assert all(f"0.0.0.0:{steps['EXPOSE']}" in recipes[name] for name in ("Containerfile", "skypilot.yaml"))
    assert subprocess.run(["bash", "-n"], input=task["setup"] + task["run"], text=True, check=True).returncode == 0
