"""Converting: what is written, by whom, and what is refused on the way."""

from __future__ import annotations

import gc
import json
import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cut_checkpoints import AUX, contents, example, flip

from tpspec.checkpoint import open_checkpoint
from tpspec.converters.complete import complete
from tpspec.converters.convert import convert
from tpspec.converters.merge import merge
from tpspec.converters.plan import plan
from tpspec.converters.readers import CheckpointReader, PreshardedReader
from tpspec.converters.sources import open_source
from tpspec.converters.verify import verify
from tpspec.errors import TpspecError
from tpspec.file_names import MANIFEST, rank_file
from tpspec.manifest import read_manifest
from tpspec.presharded import Presharded


@pytest.fixture
def source(tmp_path: Path) -> CheckpointReader:
    return CheckpointReader(example(4)[0].write(tmp_path / "source"))


LAYOUT = example(4)[1]


def test_files_that_go_along_are_copied_as_real_files_and_never_run(tmp_path: Path) -> None:
    """Links become files (huggingface_hub#1388); modelling code is copied (NVIDIA/Model-Optimizer#1245)."""
    made, layout = example(2)
    made.write(tmp_path / "blobs")
    (tmp_path / "snapshot" / "code").mkdir(parents=True)
    for name in contents(tmp_path / "blobs"):
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / name)
    convert(CheckpointReader(open_checkpoint(tmp_path / "snapshot")), tmp_path / "out", layout)
    for name, content in AUX.items():
        copy = tmp_path / "out" / name
        assert copy.read_bytes() == content
        assert stat.S_ISREG(copy.lstat().st_mode)


def test_hosts_share_the_ranks_and_the_last_one_completes_the_directory(
    tmp_path: Path, source: CheckpointReader
) -> None:
    convert(source, tmp_path / "alone", LAYOUT)
    first = convert(source, tmp_path / "out", LAYOUT, ranks=[0, 2])
    assert first.missing == (rank_file(1, 4), rank_file(3, 4))
    assert first.written == (rank_file(0, 4), rank_file(2, 4), "extras.safetensors")
    assert not (tmp_path / "out" / MANIFEST).exists()
    again = convert(source, tmp_path / "out", LAYOUT, ranks=[2])
    assert (again.written, again.present) == ((), (rank_file(2, 4),))
    last = convert(source, tmp_path / "out", LAYOUT, ranks=[1, 2, 3])
    assert (last.written, last.missing) == ((rank_file(1, 4), rank_file(3, 4)), ())
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_a_rank_beyond_tp_is_refused(tmp_path: Path, source: CheckpointReader) -> None:
    with pytest.raises(TpspecError, match="no rank 4: the ranks of tp 4 are 0 to 3"):
        convert(source, tmp_path / "out", LAYOUT, ranks=[1, 4])
    assert not (tmp_path / "out").exists()


def test_ranks_cut_from_sources_of_other_content_do_not_become_one_directory(
    tmp_path: Path, source: CheckpointReader
) -> None:
    convert(source, tmp_path / "out", LAYOUT, ranks=[0, 1])
    file = source.checkpoint.files[0].path
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(TpspecError, match="do not belong together") as error:
        convert(source, tmp_path / "out", LAYOUT, ranks=[2, 3])
    assert "was cut from another model-00001-of-00003.safetensors" in str(error.value)
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_two_conversions_into_one_directory_at_once_the_second_is_refused(
    tmp_path: Path, source: CheckpointReader
) -> None:
    refused = []

    def second(_done: int, _total: int) -> None:
        if not refused:
            with pytest.raises(TpspecError, match="another tpspec is writing") as error:
                convert(source, tmp_path / "out", LAYOUT)
            refused.append(error.value)

    assert not convert(source, tmp_path / "out", LAYOUT, progress=second).missing
    assert refused
    assert not verify(tmp_path / "out").findings


def test_two_hosts_at_once_complete_the_directory_between_them(
    tmp_path: Path, source: CheckpointReader
) -> None:
    inner = []

    def other_host(_done: int, _total: int) -> None:
        if not inner:
            inner.append(convert(source, tmp_path / "out", LAYOUT, ranks=[2, 3]))

    outer = convert(source, tmp_path / "out", LAYOUT, ranks=[0, 1], progress=other_host)
    assert inner[0].missing == (rank_file(0, 4), rank_file(1, 4), "extras.safetensors")
    assert not outer.missing
    assert not verify(tmp_path / "out").findings


def test_a_directory_begun_with_other_options_is_not_gone_on_with(
    tmp_path: Path, source: CheckpointReader
) -> None:
    convert(source, tmp_path / "out", LAYOUT, ranks=[0])
    with pytest.raises(TpspecError, match="begun by another conversion") as error:
        convert(source, tmp_path / "out", example(2)[1])
    assert "tp: was 4 when" in str(error.value)
    with pytest.raises(TpspecError, match="begun by another conversion"):
        convert(source, tmp_path / "out", example(4, order=-1)[1])
    with pytest.raises(TpspecError, match="2 tensors were dropped"):
        convert(source, tmp_path / "out", LAYOUT, drop=True)
    assert not convert(source, tmp_path / "out", LAYOUT).missing


def test_a_source_of_other_headers_is_named(tmp_path: Path, source: CheckpointReader) -> None:
    convert(source, tmp_path / "out", LAYOUT, ranks=[0])
    other, _ = example(4, width=16)
    with pytest.raises(TpspecError, match=r"source model-00001-of-00003\.safetensors: was"):
        convert(CheckpointReader(other.write(tmp_path / "other")), tmp_path / "out", example(4, width=16)[1])


def test_a_source_touched_between_two_runs_is_named_with_the_remedy(
    tmp_path: Path, source: CheckpointReader
) -> None:
    stop_after(source, tmp_path / "out", 400)
    file = source.checkpoint.files[1]
    os.utime(file.path, (1, 1))
    with pytest.raises(TpspecError, match="the source has changed since") as error:
        convert(source, tmp_path / "out", LAYOUT)
    assert f"{file.name}: changed at 1," in str(error.value)
    assert f"remove {tmp_path / 'out'} and convert again" in str(error.value)


@pytest.mark.parametrize("change", ["truncate", "touch"])
def test_a_source_that_changes_meanwhile_leaves_nothing_that_looks_complete(
    tmp_path: Path, source: CheckpointReader, change: str
) -> None:
    path = source.checkpoint.files[1].path

    def meddle(done: int, _total: int) -> None:
        if done > 100:
            os.truncate(path, 300) if change == "truncate" else os.utime(path, (1, 1))

    with pytest.raises(TpspecError, match="changed while it was being read") as error:
        convert(source, tmp_path / "out", LAYOUT, progress=meddle, strip_bytes=16)
    assert path.name in str(error.value)
    assert not list((tmp_path / "out").glob("*.safetensors"))
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, source: CheckpointReader) -> None:
    convert(source, tmp_path / "alone", LAYOUT)
    stop_after(source, tmp_path / "out", 400)
    done: list[int] = []
    convert(source, tmp_path / "out", LAYOUT, progress=lambda now, _: done.append(now), strip_bytes=16)
    assert done[0] > 64
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_a_partial_file_that_was_cut_off_is_written_again(tmp_path: Path, source: CheckpointReader) -> None:
    convert(source, tmp_path / "alone", LAYOUT)
    stop_after(source, tmp_path / "out", 400)
    os.truncate(tmp_path / "out" / f"{rank_file(1, 4)}.partial", 3)
    (tmp_path / "out" / f"{rank_file(2, 4)}.partial").unlink()
    convert(source, tmp_path / "out", LAYOUT)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def stop_after(source: CheckpointReader, out: Path, stop: int) -> None:
    """Interrupts a conversion when so many bytes are read and something of every file is durable."""

    def interrupt(done: int, _total: int) -> None:
        if done >= stop:
            journals = list((out / ".tpspec").glob("*.journal"))
            while not all(journal.stat().st_size for journal in journals):
                time.sleep(0.001)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, LAYOUT, progress=interrupt, strip_bytes=16, sync_bytes=1)


def test_dropped_tensors_are_nowhere_and_merging_says_that_bytes_differ(
    tmp_path: Path, source: CheckpointReader
) -> None:
    convert(source, tmp_path / "out", LAYOUT, drop=True)
    assert not (tmp_path / "out" / "extras.safetensors").exists()
    assert read_manifest(tmp_path / "out").losses == ("2 tensors were dropped",)
    assert not verify(tmp_path / "out").findings
    assert not verify(tmp_path / "out", source).findings
    merged = merge(PreshardedReader(Presharded.open(tmp_path / "out")), tmp_path / "merged")
    assert merged.losses == ("2 tensors were dropped",)
    rebuilt = CheckpointReader(open_checkpoint(tmp_path / "merged"))
    assert set(rebuilt.checkpoint.tensors) == set(source.checkpoint.tensors) - {"left", "over"}
    assert not verify(tmp_path / "out", rebuilt).findings
    index = json.loads((tmp_path / "merged" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(rebuilt.checkpoint.tensors)
    layout = replace(example(2)[1], extras=())
    convert(PreshardedReader(Presharded.open(tmp_path / "out")), tmp_path / "again", layout)
    assert read_manifest(tmp_path / "again").losses == ("2 tensors were dropped",)


def test_a_rank_that_was_removed_before_completion_is_written_again(
    tmp_path: Path, source: CheckpointReader
) -> None:
    convert(source, tmp_path / "alone", LAYOUT)
    convert(source, tmp_path / "out", LAYOUT, ranks=[0, 1])
    (tmp_path / "out" / rank_file(1, 4)).unlink()
    assert convert(source, tmp_path / "out", LAYOUT, ranks=[2, 3]).missing == (rank_file(1, 4),)
    assert convert(source, tmp_path / "out", LAYOUT).written == (rank_file(1, 4),)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_a_host_that_ends_after_another_completed_the_directory_changes_nothing(
    tmp_path: Path, source: CheckpointReader
) -> None:
    convert(source, tmp_path / "out", LAYOUT)
    before = contents(tmp_path / "out")
    assert complete(plan(source, tmp_path / "out", LAYOUT)) == ()
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("last", [[1, 2, 3], None])
def test_a_finished_rank_that_was_edited_before_completion_is_named(
    tmp_path: Path, source: CheckpointReader, last: list[int] | None
) -> None:
    out = tmp_path / "out"
    convert(source, out, LAYOUT, ranks=[0])
    content = bytearray((out / rank_file(0, 4)).read_bytes())
    content[-1] ^= 1
    (out / rank_file(0, 4)).write_bytes(content)
    with pytest.raises(TpspecError, match="have changed since they were written") as error:
        convert(source, out, LAYOUT, ranks=last)
    assert f"{rank_file(0, 4)}: has the hash" in str(error.value)
    assert f"remove {rank_file(0, 4)} from {out}" in str(error.value)
    assert not (out / MANIFEST).exists()
    (out / rank_file(0, 4)).unlink()
    assert convert(source, out, LAYOUT).written == (rank_file(0, 4),)
    assert not verify(out).findings


HASH = "0" * 32


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_directory_whose_config_was_edited_is_no_source(tmp_path: Path, source: CheckpointReader) -> None:
    convert(source, tmp_path / "out", LAYOUT)
    (tmp_path / "out" / "config.json").write_text('{"model_type": "other"}')
    with pytest.raises(TpspecError, match="was edited") as refused:
        open_source(str(tmp_path / "out"))
    assert refused.value.remedy == "convert again, from a checkpoint that says so"


def test_a_reader_that_nobody_holds_leaves_no_file_open(tmp_path: Path) -> None:
    folder = example(4)[0].write(tmp_path / "more")
    gc.collect()
    before = open_files()
    convert(CheckpointReader(folder), tmp_path / "out", LAYOUT)
    gc.collect()
    assert open_files() == before


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"source": []},
        {"source": {"model": 1}},
        {"source": {"model": [1, "x"]}},
        {"source": {}, "xxh3_128": 1, "digests": {}},
        {"source": {}, "size": 1, "xxh3_128": HASH, "digests": []},
        {"source": {}, "size": 1, "xxh3_128": HASH, "digests": {"model": 7}},
        {"source": {}, "size": 1, "xxh3_128": HASH, "digests": {}},
    ],
)
@pytest.mark.parametrize("ranks", [[0, 1, 2, 3], [1, 2, 3]])
def test_a_record_that_no_run_wrote_is_refused_with_the_remedy(
    tmp_path: Path, source: CheckpointReader, record: object, ranks: list[int]
) -> None:
    out = tmp_path / "out"
    convert(source, out, LAYOUT, ranks=[0])
    (out / ".tpspec" / f"{rank_file(0, 4)}.json").write_text(json.dumps(record))
    before = open_files()
    with pytest.raises(TpspecError, match="is damaged or was edited") as error:
        convert(source, out, LAYOUT, ranks=ranks)
    assert f"remove {out} and convert again" in str(error.value)
    assert open_files() == before
    assert not (out / MANIFEST).exists()


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", '{"tp": {}}'])
def test_a_plan_that_no_run_wrote_is_refused_with_the_remedy(
    tmp_path: Path, source: CheckpointReader, text: str
) -> None:
    convert(source, tmp_path / "out", LAYOUT, ranks=[0])
    (tmp_path / "out" / ".tpspec" / "plan.json").write_text(text)
    with pytest.raises(TpspecError) as error:
        convert(source, tmp_path / "out", LAYOUT)
    assert f"remove {tmp_path / 'out'} and " in str(error.value)
    assert "download" not in str(error.value)


def test_a_damaged_source_is_named_and_so_is_what_is_left(tmp_path: Path, source: CheckpointReader) -> None:
    convert(source, tmp_path / "cut", LAYOUT)
    flip(tmp_path / "cut", 1, "column")
    reader = PreshardedReader(Presharded.open(tmp_path / "cut"))
    with pytest.raises(TpspecError, match="cut is damaged") as error:
        convert(reader, tmp_path / "out", example(2)[1])
    assert f"what this run left in {tmp_path / 'out'} (*.partial) is of no use: remove it" in str(error.value)
    flip(tmp_path / "cut", 1, "column")
    for partial in (tmp_path / "out").glob("*.partial"):
        partial.unlink()
    assert not convert(reader, tmp_path / "out", example(2)[1]).missing


def test_a_file_that_fails_while_it_is_copied_is_a_failed_read(tmp_path: Path) -> None:
    made, layout = example(2)
    source = CheckpointReader(made.write(tmp_path / "source"))
    (tmp_path / "source" / "notes.txt").symlink_to("/proc/self/mem")  # its first page cannot be read
    with pytest.raises(TpspecError, match=r"cannot read .*source/notes.txt: Input/output error"):
        convert(source, tmp_path / "out", layout)
