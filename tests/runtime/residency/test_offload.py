"""Between phases state waits in shared memory, comes back as it was, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import rollmux_offload
import torch
from rollmux_offload import Offloader
from rollmux_segment import Footprint, Segment

MIB = 1 << 20


def _resident() -> int:
    """Bytes that this process holds in memory."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def _shared(process: int) -> dict[int, str]:
    """The shared memory that a process holds open: names by inode, since others of one name may be there."""
    found = {}
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            if (name := os.readlink(entry)).startswith(("/memfd:", "/dev/shm/")):
                found[entry.stat().st_ino] = name
    return found


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _trained() -> tuple[torch.nn.Module, torch.optim.AdamW]:
    """A model after one step of its optimizer: about 96 MiB in three copies."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    _step(model, optimizer)
    return model, optimizer


def _step(model: torch.nn.Module, optimizer: torch.optim.AdamW) -> None:
    model(torch.linspace(-1, 1, 2048).view(2, 1024)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _state(model: torch.nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    state = {f"{i}.{j}": tensor for i, entry in enumerate(optimizer.state.values()) for j, tensor in entry.items()}
    return state | dict(model.named_parameters())


def test_the_process_shrinks_by_what_it_offloads_and_gets_it_back() -> None:
    model, optimizer = _trained()
    offloader = Offloader(lambda: _state(model, optimizer))
    before, digest = _resident(), _digest(_state(model, optimizer))
    moved = offloader.footprint().device
    assert moved > 90 * MIB

    away = offloader.offload()
    assert away.device == 0
    assert moved <= away.host < moved + MIB  # as the kernel counts the pages
    assert before - _resident() > 0.9 * moved

    back = offloader.restore()
    assert back == Footprint(moved, 0)
    assert _digest(_state(model, optimizer)) == digest


def test_training_goes_on_as_if_nothing_had_happened() -> None:
    stayed, moved = _trained(), _trained()
    offloader = Offloader(lambda: _state(*moved))
    for _ in range(2):
        offloader.offload()
        offloader.offload()
        offloader.restore()
        offloader.restore()
        _step(*stayed)
        _step(*moved)
    assert _digest(_state(*stayed)) == _digest(_state(*moved))


def test_shared_memory_stays_shared_and_a_mapped_file_becomes_own_memory() -> None:
    base = torch.arange(12.0)
    view, array = base[4:8], np.arange(6.0)
    mapped = torch.from_numpy(array)
    tied = mapped[2:]
    empty = torch.empty(0)
    offloader = Offloader(lambda: {"base": base, "view": view, "mapped": mapped, "tied": tied, "empty": empty})
    assert mapped.data_ptr() % 64 == 0  # as it will be when it comes back: the same kernels, the same last bits
    offloader.offload()
    assert base.untyped_storage().nbytes() == mapped.untyped_storage().nbytes() == 0
    offloader.restore()
    view += 1
    tied -= 2
    assert base.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 8, 9, 10, 11]
    assert mapped.tolist() == [0, 1, 0, 1, 2, 3]
    assert array.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_segment_counts_once() -> None:
    before = _resident()
    segment = Segment(64 * MIB)
    segment.bytes.fill_(1)
    assert _resident() - before > 60 * MIB
    assert segment.footprint() == Footprint(host=64 * MIB)  # and the process has no part of it any more
    assert _resident() - before < 4 * MIB
    assert segment.bytes.sum() == 64 * MIB
    assert Footprint(1, 2, 3) + Footprint(host=5, mapped=4) == Footprint(1, 7, 7)
    segment.close()


def test_host_memory_that_is_kept_is_not_much_larger_than_what_waits_in_it() -> None:
    offloader = Offloader(dict)
    sizes = [len(offloader._room(nbytes, False).bytes) for nbytes in (1000, 900, 500, 499, 0, 600)]  # noqa: SLF001
    assert sizes == [1000, 1000, 1000, 499, 1, 600]
    offloader.close()


@pytest.mark.parametrize("frees_s", [29, 31])
def test_state_comes_back_to_a_gpu_when_a_process_that_ends_has_freed_its_memory(
    monkeypatch: pytest.MonkeyPatch, frees_s: int
) -> None:
    """On a device and a clock of the test's own."""
    now, state = [0.0], {"weights": torch.arange(MIB, dtype=torch.float32)}
    offloader, before = Offloader(lambda: state), _digest(state)
    offloader.offload()
    monkeypatch.setattr(offloader._segment, "pinned", True)  # noqa: SLF001 - as on a GPU
    free = {"mem_get_info": lambda: (8 * MIB if now[0] >= frees_s else 0, 80 * MIB), "synchronize": lambda: None}
    for name, stand_in in (free | {"memory_reserved": lambda: 2 * MIB, "memory_allocated": lambda: MIB}).items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(rollmux_offload, "monotonic", lambda: now[0])
    monkeypatch.setattr(rollmux_offload, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    if frees_s > 30:
        with pytest.raises(torch.OutOfMemoryError, match="out of memory: state that comes back needs"):
            offloader.restore()
        assert offloader.offloaded and state["weights"].untyped_storage().nbytes() == 0
        now[0] = 0.0
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (80 * MIB, 80 * MIB))
    offloader.restore()
    assert _digest(state) == before and now[0] == (29 if frees_s < 30 else 0)
    monkeypatch.undo()
    offloader.close()


def test_a_restore_that_fails_half_way_leaves_all_offloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where as much is free as it takes, in pieces that are too small."""
    state, scratch = {name: torch.full((MIB,), float(number)) for number, name in enumerate("abc")}, torch.ones(MIB)
    offloader, before, taken = Offloader(lambda: state, lambda: [scratch]), _digest(state), list[str]()
    away = offloader.offload()

    def second_fails(storage: torch.UntypedStorage) -> torch.Tensor:
        taken.append("piece")
        if len(taken) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.empty(0, dtype=torch.uint8).set_(storage)

    monkeypatch.setattr(rollmux_offload, "_bytes", second_fails)
    with pytest.raises(torch.OutOfMemoryError):
        offloader.restore()
    assert [one.untyped_storage().nbytes() for one in (*state.values(), scratch)] == [0] * 4
    assert offloader.offloaded and offloader.offload() == away
    offloader.restore()
    assert _digest(state) == before and scratch.untyped_storage().nbytes() == 4 * MIB
    offloader.close()


def test_scratch_in_memory_that_cannot_be_released_stays() -> None:
    state, own, foreign = {"weights": torch.arange(9.0)}, torch.ones(9), torch.from_numpy(np.ones(9))
    offloader = Offloader(lambda: state, lambda: [own, foreign])
    assert offloader.offload().device == 0
    assert own.untyped_storage().nbytes() == 0 and foreign.tolist() == [1.0] * 9
    offloader.restore()
    assert state["weights"].tolist() == [*range(9)]
    offloader.close()


def test_nothing_has_a_name_that_could_be_left_behind() -> None:
    tensor = torch.ones(MIB)
    offloader = Offloader(lambda: {"tensor": tensor})
    before = _shared(os.getpid())
    offloader.offload()
    made = {inode: name for inode, name in _shared(os.getpid()).items() if inode not in before}
    assert [*made.values()] == ["/memfd:rollmux (deleted)"]
    offloader.close()
    assert not made.keys() & _shared(os.getpid()).keys()


def test_a_killed_process_leaves_nothing_in_shared_memory() -> None:
    program = """
        import torch
        from rollmux_offload import Offloader
        tensor = torch.ones(1 << 20)
        offloader = Offloader(lambda: {"tensor": tensor})
        print(offloader.offload().host, flush=True)
        input()
    """
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    with process.stdin, process.stdout:
        assert int(process.stdout.readline()) >= 4 * MIB
        assert {*_shared(process.pid).values()} == {"/memfd:rollmux (deleted)"}
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not [name for name in os.listdir("/dev/shm") if "rollmux" in name and name not in before]


def test_large_blocks_go_back_to_the_system_when_they_are_freed() -> None:
    """glibc keeps blocks below the largest that was ever freed, up to 32 MB, and a hole below one that is in use stays a hole."""
    program = """
        import sys, torch
        from rollmux_offload import map_large_blocks
        from tests.runtime.residency.test_offload import _resident
        if sys.argv[1] == "map":
            map_large_blocks()
        torch.ones(6 << 20)
        before = _resident()
        blocks = [torch.ones(2 << 20) for _ in range(12)]
        last = blocks[-1]
        blocks.clear()
        print(_resident() - before)
    """
    program = textwrap.dedent(program)
    left = [
        int(subprocess.run([sys.executable, "-c", program, how], capture_output=True, check=True, text=True).stdout)
        for how in ("keep", "map")
    ]
    assert left[0] > 60 * MIB and left[1] < 20 * MIB


def test_what_is_read_stays_as_it_was_while_it_is_restored_changed_and_offloaded_anew() -> None:
    model, optimizer = _trained()
    offloader = Offloader(lambda: dict(model.named_parameters()))
    before = _digest(dict(model.named_parameters()))
    others = _shared(os.getpid()).keys()  # of tests before this one
    offloader.offload()
    shared = _shared(os.getpid())
    with offloader.shards(dict(model.named_parameters())) as shards:
        assert _shared(os.getpid()) == shared  # it is read where it is
        offloader.restore()
        _step(model, optimizer)
        assert offloader.offload().host > 64 * MIB  # both
        assert _digest(shards) == before
    assert offloader.footprint().host < 34 * MIB  # the older one is gone
    with offloader.shards(dict(model.named_parameters())) as shards:
        after = _digest(shards)
    assert after != before
    offloader.restore()
    assert _digest(dict(model.named_parameters())) == after
    with offloader.shards(dict(model.named_parameters())) as shards:  # on the device: copies
        _step(model, optimizer)
        assert _digest(shards) == after
    offloader.close()
    assert not (_shared(os.getpid()).keys() & shared.keys()) - others


BUCKETS = """
import sys, torch
import torch.distributed as dist
from rollmux_offload import GradientBuckets, Offloader, state_of
from torch.nn.parallel import DistributedDataParallel

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
for offloads, view in ((False, False), (True, False), (True, True)):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=view)
    optimizer = torch.optim.AdamW(model.parameters())
    buckets = GradientBuckets(wrapped) if offloads else lambda: ()
    offloader = Offloader(lambda: state_of(model, optimizer), buckets)
    held = lambda: sum({b.untyped_storage()._cdata: b.untyped_storage().nbytes() for b in buckets()}.values())
    for step in range(5):
        generator = torch.Generator().manual_seed(10 * step + rank)
        wrapped(torch.randn(4, 512, generator=generator)).square().mean().backward()
        optimizer.step()
        if offloads:
            before, device = held(), offloader.footprint().device
            away = offloader.offload().device, held()
            assert (before, *away, offloader.restore().device) == (8 * 512 * 513 * 4, 0, 0, device), (before, away, device)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    print(sum(float(p.detach().double().sum()) * (k + 1) for k, p in enumerate(model.parameters())).hex())
dist.destroy_process_group()
"""


def test_buckets_of_gradients_leave_with_the_rest_and_nothing_is_trained_otherwise(tmp_path: Path) -> None:
    alike = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = [sys.executable, "-c", BUCKETS]
    given = [[str(rank), str(tmp_path / "meet")] for rank in range(2)]
    ranks = [subprocess.Popen([*words, *own], env=alike, stdout=subprocess.PIPE, text=True) for own in given]
    lines = [line for rank in ranks for line in rank.communicate()[0].splitlines()]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert len(lines) == 6 and len(set(lines)) == 1  # whether anything moves or not
