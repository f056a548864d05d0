"""Launching ranks: what comes back from them, and that none is left, whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import rank_targets
import torch

from tpspec.errors import TpspecError
from tpspec.runtime.calls import RankLost
from tpspec.runtime.launch import Kind, joined_group, launch

SOON = 20
"""Seconds: it takes less than one, but on a machine with ten times as many processes as cores."""
TESTS = Path(__file__).parent.parent
LLAMA = "transformers.models.llama.modeling_llama"


@pytest.mark.parametrize("kind", ["threads", "shared"])
def test_messages_of_rank_0_come_in_order_and_then_its_result(kind: Kind):
    heard: list[tuple[int, torch.Tensor]] = []
    result = launch(2, rank_targets.streaming, (30,), kind=kind, on_message=heard.append)
    assert [(step, int(total)) for step, total in heard] == [(step, 2 * step) for step in range(30)]
    assert torch.equal(result, torch.ones(1 << 20))


def test_a_rank_is_forked_from_imports_alone_and_keeps_off_stdin_and_stdout(
    capfd: pytest.CaptureFixture[str],
):
    found = launch(2, rank_targets.own_process, (LLAMA,), preload=[LLAMA])
    assert found == {
        "loaded": True,
        "server threads": 1,
        "cuda": False,
        "torch threads": max(1, len(os.sched_getaffinity(0)) // 2),
        "stdin": "",
        "rank": 0,
    }
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("a rank speaks") == 2


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(TpspecError, match=r"could not be started: No module named 'no_such_module'"):
        launch(2, rank_targets.streaming, (1,), preload=["no_such_module"])


@pytest.mark.parametrize("kind", ["threads", "shared"])
def test_a_ranks_fault_is_raised_with_its_rank_and_findings(kind: Kind):
    with pytest.raises(TpspecError) as raised:
        launch(3, rank_targets.steps_until, (1, "fault"), kind=kind)
    assert str(raised.value).splitlines() == [
        "rank 1: no good on 1",
        "  model.norm: 3 is not 4",
        "  → make it 4",
    ]


@pytest.mark.parametrize(
    ("end", "error", "words"),
    [
        ("bug", RuntimeError, "rank 1 failed:\nTraceback.*KeyError: 'missing key'"),
        ("no file", TpspecError, "rank 1: /no/such/file: No such file or directory"),
        ("memory", TpspecError, r"rank 1: out of memory: \S+ TiB more was asked for"),
        ("exit", TpspecError, "rank 1 ended early, with status 3"),
    ],
)
def test_any_other_end_of_a_rank_is_raised(end: str, error: type[Exception], words: str):
    with pytest.raises(error, match=f"(?s){words}"):
        launch(2, rank_targets.steps_until, (1, end))


def test_a_bug_in_a_thread_is_raised_as_it_is():
    with pytest.raises(KeyError, match="missing key"):
        launch(2, rank_targets.steps_until, (1, "bug"), kind="threads")


@pytest.mark.parametrize(("kind", "size"), [("shared", 2), ("shared", 4), ("gloo", 3)])
def test_a_killed_rank_stops_the_others_within_5_s_and_is_named(kind: Kind, size: int):
    steps: list[float] = []
    with pytest.raises(TpspecError, match=r"rank 1 was killed by signal 9 \(SIGKILL\)"):
        launch(size, rank_targets.steps_until, (1, "killed"), kind=kind, on_message=steps.append)
    assert time.monotonic() - steps[-1] < 5


def test_an_error_of_the_listener_ends_the_ranks():
    pids: list[int] = []

    def stop(message: object) -> None:
        if pids:
            raise BrokenPipeError
        pids.extend(message)

    with pytest.raises(BrokenPipeError):
        launch(2, rank_targets.pids_then_steps, on_message=stop)
    assert not [pid for pid in pids if alive(pid)]


def alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def session(leader: int) -> list[int]:
    """Living processes of a session: a launcher, its server, its ranks."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, number = entry.read_text().rpartition(")")[2].split()[:4]
            if int(number) == leader and state != "Z":
                found.append(int(entry.parent.name))
    return found


# a script as the console's is: its main module must not be run again in the ranks
SCRIPT = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]  # the root first: in tests/ there is a folder tpspec too
import rank_targets
from tpspec.runtime.launch import launch
print("launching", flush=True)
show = lambda message: print(message, flush=True)
try:
    launch(3, rank_targets.pids_then_steps, kind={kind!r}, on_message=show)
except KeyboardInterrupt:
    print("interrupted")
"""


def launcher(tmp_path: Path, kind: Kind) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(TESTS.parent), tests=str(TESTS), kind=kind))
    process = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "launching\n"
    return process


@pytest.mark.parametrize("kind", ["shared", "gloo"])
def test_ctrl_c_leaves_no_process_and_no_shared_memory_behind(tmp_path: Path, kind: Kind):
    with launcher(tmp_path, kind) as process:
        assert process.stdout
        pids = process.stdout.readline()
        assert pids.count(",") == 2
        members = session(process.pid)
        assert len(members) == 5
        assert not [pid for pid in members if "/dev/shm" in Path(f"/proc/{pid}/maps").read_text()]
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        out, err = process.communicate(timeout=SOON)
    assert out.endswith("interrupted\n")
    assert err == ""
    assert session(process.pid) == []  # and with the last process went its unnamed memory


def test_ctrl_c_while_the_ranks_are_being_started(tmp_path: Path):
    with launcher(tmp_path, "shared") as process:
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=SOON) == ("interrupted\n", "")
    assert session(process.pid) == []


def test_ranks_die_with_a_killed_launcher(tmp_path: Path):
    with launcher(tmp_path, "shared") as process:
        assert process.stdout
        process.stdout.readline()
        process.kill()
        process.wait()
        assert soon(lambda: session(process.pid) == [])


def test_ranks_die_with_a_killed_server():
    def kill_server(message: object) -> None:
        if isinstance(message, list):
            pids.extend(message)
            os.kill(parent_of(message[0]), signal.SIGKILL)

    pids: list[int] = []
    with pytest.raises(TpspecError, match="forked from was killed by signal 9"):
        launch(2, rank_targets.pids_then_steps, on_message=kill_server)
    assert len(pids) == 2
    assert soon(lambda: not any(map(alive, pids)))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


JOINING = """
import sys
import torch
from tpspec.runtime.launch import joined_group
group = joined_group()
total = group.all_reduce(torch.tensor([group.rank + 1.0], dtype=torch.bfloat16), "site")
sys.stdout.write(f"rank {group.rank} of {group.size}: {total.item():g}\\n")  # in one piece
group.close()
"""


def test_under_torchrun_a_process_joins_the_group_it_finds(tmp_path: Path):
    script = tmp_path / "joining.py"
    script.write_text(JOINING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run([*torchrun, script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["rank 0 of 2: 3", "rank 1 of 2: 3"]


def test_elsewhere_there_is_no_group_to_join(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    assert joined_group() is None


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("zero", "2"), ("0", "-1")])
@pytest.mark.usefixtures("torchrun_environment")
def test_an_environment_that_makes_no_sense_is_no_group(
    monkeypatch: pytest.MonkeyPatch, rank: str, size: str
):
    for name, value in {"RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TpspecError, match=rf"that this is rank '{rank}' of '{size}'\n.*unset them"):
        joined_group()


@pytest.fixture
def torchrun_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "LOCAL_RANK": "0",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("torchrun_environment")
def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(
            TpspecError, match=rf"rank 0 of 2 could not join the group at .*:{port}: the port is in use\n"
        ):
            joined_group(timeout=5)


@pytest.mark.usefixtures("torchrun_environment")
def test_ranks_that_do_not_come_are_missed_in_time(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_PORT", str(port))
    with pytest.raises(TpspecError, match="rank 0 of 2 could not join the group"):
        joined_group(timeout=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.usefixtures("torchrun_environment")
def test_a_rank_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(TpspecError, match="rank 0 is number 0 on its machine, where torch finds 0 GPUs"):
        joined_group("cuda")


def test_launching_needs_no_torch():
    code = "import sys, tpspec.runtime.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_error_of_the_rank_at_fault_is_raised_rather_than_that_of_one_that_lost_it():
    for _ in range(5):
        with pytest.raises(TpspecError, match="rank 2: no good on 2") as raised:
            launch(3, rank_targets.steps_until, (2, "fault"), kind="threads")
        assert not isinstance(raised.value, RankLost)
