"""Interrupted conversions: killed at any moment, stopped from the keyboard, out of disk; then run again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from cut_checkpoints import contents, example

from benchmarks.convert import CONFIG, write_model
from tpspec.converters.convert import convert
from tpspec.converters.readers import CheckpointReader
from tpspec.converters.verify import verify
from tpspec.errors import TpspecError
from tpspec.file_names import MANIFEST

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
TPSPEC = [sys.executable, "-m", "tpspec"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 180 MB, long enough to be interrupted."""
    config = CONFIG | {"num_hidden_layers": 2, "hidden_size": 1024}
    return write_model(tmp_path_factory.mktemp("model") / "source", config)


def test_killed_at_every_third_call_that_changes_a_file_it_goes_on() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        command = [sys.executable, "-m", "kill_at_every_call", folder, "3"]
        done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    kills, resumed = (int(word) for word in done.stdout.split() if word.isdigit())
    assert kills > 50
    assert resumed > 20


def test_killed_again_and_again_the_command_line_completes_what_it_began(tmp_path: Path, model: Path) -> None:
    command = [*TPSPEC, "convert", str(model), str(tmp_path / "out"), "--tp", "8"]
    for delay in (0.0, 0.02, 0.05, 0.1):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            wait_for_partial(tmp_path / "out", process)
            time.sleep(delay)
            process.kill()
        if process.returncode != 0:
            assert not (tmp_path / "out" / MANIFEST).exists() or not verify(tmp_path / "out").findings
    if not (tmp_path / "out" / MANIFEST).exists():
        subprocess.run(command, check=True, capture_output=True)
    check = [*TPSPEC, "verify", str(tmp_path / "out"), "--against", str(model)]
    assert "is sound" in subprocess.run(check, check=True, capture_output=True, text=True).stdout


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(tmp_path: Path, model: Path) -> None:
    command = [*TPSPEC, "convert", str(model), str(tmp_path / "out"), "--tp", "8"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for_partial(tmp_path / "out", process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        message = process.stderr.read()
    assert process.returncode == 130
    assert "the same command goes on from here" in message
    assert "Traceback" not in message
    assert not (tmp_path / "out" / MANIFEST).exists()
    subprocess.run(command, check=True, capture_output=True)
    assert not verify(tmp_path / "out").findings


def test_a_second_command_into_the_same_directory_fails_at_once(tmp_path: Path, model: Path) -> None:
    command = [*TPSPEC, "convert", str(model), str(tmp_path / "out"), "--tp", "8"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as first:
        wait_for_partial(tmp_path / "out", first)
        first.send_signal(signal.SIGSTOP)
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        first.send_signal(signal.SIGCONT)
    assert first.returncode == 0
    assert second.returncode == 1
    assert "another tpspec is writing model-rank-00000-of-00008.safetensors" in second.stderr
    assert not verify(tmp_path / "out").findings


def test_a_file_size_limit_is_one_clear_error_and_a_rerun_recovers(tmp_path: Path, model: Path) -> None:
    """As when the disk is full (hiyouga/LLaMA-Factory#5155, facebookresearch/metaseq#53)."""
    command = [*TPSPEC, "convert", str(model), str(tmp_path / "out"), "--tp", "8", "--quiet"]
    limit = 5 << 20
    failed = subprocess.run(
        ["prlimit", f"--fsize={limit}", *command], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1
    assert failed.stderr.count("error:") == 1
    assert "File too large" in failed.stderr
    assert "put that right, then run the same command again" in failed.stderr
    assert not list((tmp_path / "out").glob("*.safetensors"))
    assert not (tmp_path / "out" / MANIFEST).exists()
    subprocess.run(command, check=True)
    assert not verify(tmp_path / "out").findings


def test_a_disk_that_another_fills_up_is_one_clear_error_and_a_rerun_recovers(
    tmp_path: Path, small_disk: Path
) -> None:
    made, layout = example(4, width=2048)
    checkpoint = made.write(tmp_path / "source")
    filler = small_disk / "another-users-file"

    class Late(CheckpointReader):
        """Has the disk filled up after the free space was found sufficient."""

        def stamps(self) -> dict[str, list[int]]:
            filler.write_bytes(bytes((1 << 20) - (300 << 10)))
            return super().stamps()

    with pytest.raises(TpspecError, match=r"cannot write .*: No space left on device"):
        convert(Late(checkpoint), small_disk / "out", layout)
    assert not list((small_disk / "out").glob("*.safetensors"))
    source = CheckpointReader(checkpoint)
    with pytest.raises(TpspecError, match=r"needs 0\.\d MB more, its disk has 0\.\d MB free"):
        convert(source, small_disk / "out", layout)
    filler.unlink()
    convert(source, small_disk / "out", layout)
    assert not verify(small_disk / "out").findings
    convert(source, tmp_path / "elsewhere", layout)
    assert contents(small_disk / "out") == contents(tmp_path / "elsewhere")


def test_what_is_set_aside_on_the_disk_is_not_asked_for_again(tmp_path: Path, small_disk: Path) -> None:
    made, layout = example(4, width=6000)
    source = CheckpointReader(made.write(tmp_path / "source"))
    assert sum(file.size for file in source.checkpoint.files) > 600_000

    def interrupt(_done: int, _total: int) -> None:
        while shutil.disk_usage(small_disk).free > 400_000:
            time.sleep(0.001)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, small_disk / "out", layout, progress=interrupt, strip_bytes=4096)
    convert(source, small_disk / "out", layout)
    assert not verify(small_disk / "out").findings


MEMORY = """
import resource, sys
from pathlib import Path
from cut_checkpoints import example
from tpspec.checkpoint import open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.readers import CheckpointReader
reader = CheckpointReader(open_checkpoint(Path(sys.argv[1])))
layout = example(2, width=1 << 20)[1]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(reader, Path(sys.argv[2]), layout)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_the_buffers_for_tensors_and_rows_larger_than_them(tmp_path: Path) -> None:
    example(2, width=1 << 20)[0].write(tmp_path / "source")
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "source"), str(tmp_path / "out")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50 << 10
    assert not verify(tmp_path / "out").findings


def wait_for_partial(out: Path, process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not any(path.stat().st_size for path in out.glob("*.partial")):
        time.sleep(0.001)
