from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from tiny_files import entries, file_bytes, open_to_others, write_checkpoint, write_index

from tpspec.checkpoint import is_presharded, open_checkpoint
from tpspec.errors import TpspecError
from tpspec.safetensors_header import encode_header

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARDS = {ONE: {"embed": (4, 2), "layer": (2, 2)}, TWO: {"head": (4, 2), "norm": (2,)}}


def findings_of(folder):
    with pytest.raises(TpspecError) as caught:
        open_checkpoint(folder)
    assert str(folder) in caught.value.message
    return caught.value.findings


def test_one_file_is_a_checkpoint(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"model.safetensors": {"a": (2, 3), "b": (4,)}}))
    assert checkpoint.config == {"model_type": "llama"}
    assert list(checkpoint.tensors) == ["a", "b"]
    assert checkpoint.index is None
    assert (checkpoint.format, checkpoint.bin_files, checkpoint.local) == ("safetensors", (), True)


def test_one_file_of_another_name_is_a_checkpoint(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"weights.safetensors": {"a": (2, 3)}}))
    assert [file.name for file in checkpoint.files] == ["weights.safetensors"]


def test_a_hidden_file_is_not_taken_for_weights(tmp_path):
    write_checkpoint(tmp_path, {"weights.safetensors": {"a": (2,)}})
    (tmp_path / "._weights.safetensors").write_bytes(b"left by macOS")
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]


def test_other_files_beside_model_safetensors_are_not_read(tmp_path):
    write_checkpoint(tmp_path, {"model.safetensors": {"a": (2,)}})
    (tmp_path / "consolidated.safetensors").write_bytes(b"not read")
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]


def test_many_files_with_an_index_are_a_checkpoint(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, SHARDS))
    assert [file.name for file in checkpoint.files] == [ONE, TWO]
    assert list(checkpoint.tensors) == ["embed", "layer", "head", "norm"]
    assert checkpoint.tensors["norm"].file == TWO
    assert checkpoint.index == (tmp_path / INDEX).read_bytes()


def test_many_files_without_an_index_are_a_checkpoint_if_the_set_is_complete(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, SHARDS, index=False))
    assert list(checkpoint.tensors) == ["embed", "layer", "head", "norm"]
    assert checkpoint.index is None


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([ONE, "model-00002-of-00003.safetensors"], "several files and no index"),
        (["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"], "absent: model-00002-of"),
        ([ONE, TWO, "model-00003-of-00002.safetensors"], "3 files numbered 1 to 2"),
        ([ONE, TWO, "model-00000-of-00002.safetensors"], "3 files numbered 1 to 2"),
        (["a.safetensors", "b.safetensors"], "several files and no index"),
        ([ONE, "other-00002-of-00002.safetensors"], "several files and no index"),
        ([ONE, TWO, "adapter.safetensors"], "several files and no index"),
    ],
)
def test_several_files_without_an_index_that_are_no_complete_set_are_refused(tmp_path, names, problem):
    write_checkpoint(tmp_path, {name: {name: (2,)} for name in names}, index=False)
    (finding,) = findings_of(tmp_path)
    assert problem in finding.problem


def test_an_index_that_names_an_absent_file_is_refused(tmp_path):
    """(sglang#32279) An indexed file is absent."""
    write_checkpoint(tmp_path, SHARDS)
    (tmp_path / TWO).unlink()
    (finding,) = findings_of(tmp_path)
    assert (finding.subject, finding.problem) == (TWO, "does not exist")


def test_a_tensor_that_is_not_in_its_indexed_file_is_refused_naming_both(tmp_path):
    """(huggingface_hub#4725) The tensor is not in the shard that the index maps it to."""
    write_checkpoint(tmp_path, SHARDS)
    weight_map = {"embed": ONE, "layer": TWO, "head": TWO, "norm": TWO, "ghost": ONE}
    write_index(tmp_path, weight_map)
    findings = findings_of(tmp_path)
    assert [(f.subject, f.problem, f.place) for f in findings] == [
        (TWO, "lacks what the index puts there: layer", INDEX),
        (ONE, "lacks what the index puts there: ghost", INDEX),
    ]


def test_a_tensor_that_the_index_does_not_list_is_refused(tmp_path):
    write_checkpoint(tmp_path, SHARDS)
    write_index(tmp_path, {"embed": ONE, "head": TWO})
    findings = findings_of(tmp_path)
    assert [(f.subject, f.problem) for f in findings] == [
        (ONE, "holds what the index omits: layer"),
        (TWO, "holds what the index omits: norm"),
    ]


@pytest.mark.parametrize("index", [True, False])
def test_a_tensor_stored_in_two_files_is_refused(tmp_path, index):
    write_checkpoint(tmp_path, {ONE: {"a": (2,), "b": (2,)}, TWO: {"c": (2,), "a": (2,)}}, index=index)
    (finding,) = findings_of(tmp_path)
    assert (finding.subject, finding.problem) == (f"{ONE} and {TWO}", "both hold a")


def test_many_tensors_of_one_fault_are_one_finding(tmp_path):
    names = [f"t{n}" for n in range(900)]
    write_checkpoint(tmp_path, {"model.safetensors": {"a": (1,)}}, index=True)
    write_index(tmp_path, dict.fromkeys(["a", *names], "model.safetensors"))
    (finding,) = findings_of(tmp_path)
    assert finding.problem.endswith("t0, t1, t2 and 897 more")


@pytest.mark.parametrize(
    "name",
    [
        *("../model.safetensors", "/etc/model.safetensors", "sub/model.safetensors", "..", "", "."),
        *("sub\\model.safetensors", "model\0.safetensors", "model\n.safetensors", "model.bin", "config.json"),
        ".safetensors/../../x.safetensors",
    ],
)
def test_an_index_that_leads_out_of_the_folder_is_refused_before_any_file_is_opened(tmp_path, name):
    folder = write_checkpoint(tmp_path / "model", {"model.safetensors": {"a": (1,)}})
    (tmp_path / "model.safetensors").write_bytes(b"outside")
    write_index(folder, {"a": name})
    (folder / "model.safetensors").unlink()
    (finding,) = findings_of(folder)
    assert finding.subject == INDEX
    assert repr(name) in finding.problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("{}", 'has no "weight_map"'),
        ('{"weight_map": {}}', 'has no "weight_map"'),
        ('{"weight_map": ["a"]}', 'has no "weight_map"'),
        ('{"weight_map": {"a": 1}}', "values are not all file names"),
        ('{"weight_map": {"a": ["model.safetensors"]}}', "values are not all file names"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "key 'a' stands 2 times"),
        ('{"weight_map": NaN}', "NaN is not a JSON number"),
    ],
)
def test_an_unsound_index_is_refused(tmp_path, text, problem):
    write_checkpoint(tmp_path, {"weights.safetensors": {"a": (1,)}})
    (tmp_path / INDEX).write_text(text)
    (finding,) = findings_of(tmp_path)
    assert finding.subject == INDEX
    assert problem in finding.problem


def test_total_size_in_the_index_is_neither_needed_nor_believed(tmp_path):
    write_checkpoint(tmp_path, SHARDS)
    index = json.loads((tmp_path / INDEX).read_text())
    for metadata in ({"total_size": -1}, {"total_size": "many"}, None):
        (tmp_path / INDEX).write_text(json.dumps({**index, "metadata": metadata}))
        assert len(open_checkpoint(tmp_path).tensors) == 4


def test_an_index_of_the_single_file_is_kept(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"model.safetensors": {"a": (1,)}}, index=True))
    assert checkpoint.index == (tmp_path / INDEX).read_bytes()


def test_a_single_file_beside_an_index_of_others_is_refused(tmp_path):
    write_checkpoint(tmp_path, SHARDS)
    (tmp_path / "model.safetensors").write_bytes(file_bytes(entries({"a": (1,)})))
    (finding,) = findings_of(tmp_path)
    assert finding.remedy == f"remove model.safetensors or {INDEX}"


def test_a_snapshot_of_links_into_blobs_is_a_checkpoint(tmp_path):
    """(huggingface_hub#1388) Links of a cache snapshot are followed."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    write_checkpoint(blobs, SHARDS)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(os.path.relpath(path, snapshot))
    checkpoint = open_checkpoint(snapshot)
    assert len(checkpoint.tensors) == 4
    assert checkpoint.aux_files() == ["config.json"]


@pytest.mark.parametrize("name", ["config.json", ONE, INDEX])
def test_a_dangling_link_is_refused_by_name(tmp_path, name):
    """(huggingface_hub#1388) A link to a blob that is gone."""
    write_checkpoint(tmp_path, SHARDS)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("../../blobs/0123")
    (finding,) = findings_of(tmp_path)
    assert finding.subject == name
    assert finding.problem == "is a link to ../../blobs/0123, which does not exist"


@pytest.mark.timeout(5)
@pytest.mark.parametrize("name", ["config.json", ONE, INDEX])
def test_a_pipe_does_not_hang(tmp_path, name):
    write_checkpoint(tmp_path, SHARDS)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    (finding,) = findings_of(tmp_path)
    assert (finding.subject, finding.problem) == (name, "is a named pipe, not a file")


def test_all_faults_are_reported_at_once(tmp_path):
    write_checkpoint(tmp_path, SHARDS)
    (tmp_path / "config.json").unlink()
    (tmp_path / ONE).write_bytes((tmp_path / ONE).read_bytes()[:-1])
    (tmp_path / TWO).write_bytes(b"")
    problems = {finding.subject: finding.problem for finding in findings_of(tmp_path)}
    assert problems["config.json"] == "does not exist"
    assert problems[ONE].startswith("is cut off")
    assert problems[TWO].startswith("has 0 bytes")
    assert len(problems) == 3


def test_a_directory_without_weights_is_refused_saying_what_it_holds(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (finding,) = findings_of(tmp_path)
    assert "only .gguf, .json" in finding.problem


def test_what_is_no_directory_is_refused(tmp_path):
    with pytest.raises(TpspecError, match="is not a directory"):
        open_checkpoint(tmp_path / "absent")


BIN_INDEX = "pytorch_model.bin.index.json"


def write_bins(folder, *names):
    (folder / "config.json").write_text("{}")
    for name in names:
        (folder / name).write_bytes(b"PK")


def test_bin_files_are_named_but_not_read(tmp_path):
    write_bins(tmp_path, "pytorch_model.bin", "training_args.bin")
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.format, checkpoint.bin_files) == ("bin", ("pytorch_model.bin",))
    assert (checkpoint.files, checkpoint.tensors) == ((), {})


def test_bin_files_are_taken_from_their_index(tmp_path):
    write_bins(tmp_path, "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    weight_map = {"b": "pytorch_model-00002-of-00002.bin", "a": "pytorch_model-00001-of-00002.bin"}
    write_index(tmp_path, weight_map, BIN_INDEX)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.bin_files == tuple(sorted(weight_map.values()))
    assert checkpoint.index == (tmp_path / BIN_INDEX).read_bytes()


@pytest.mark.parametrize("name", ["../x.bin", "/x.bin", "x\0.bin", "model.safetensors"])
def test_a_bin_index_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    write_bins(tmp_path)
    write_index(tmp_path, {"a": name}, BIN_INDEX)
    (finding,) = findings_of(tmp_path)
    assert finding.subject == BIN_INDEX


def test_an_absent_bin_file_is_refused(tmp_path):
    write_bins(tmp_path)
    write_index(tmp_path, {"a": "pytorch_model-00001-of-00001.bin"}, BIN_INDEX)
    (finding,) = findings_of(tmp_path)
    assert (finding.subject, finding.problem) == ("pytorch_model-00001-of-00001.bin", "does not exist")


def test_safetensors_win_over_bin_files(tmp_path):
    write_checkpoint(tmp_path, {"model.safetensors": {"a": (1,)}})
    write_bins(tmp_path, "pytorch_model.bin")
    assert open_checkpoint(tmp_path).format == "safetensors"


def test_a_directory_with_a_manifest_is_presharded(tmp_path):
    assert not is_presharded(tmp_path)
    (tmp_path / "tpspec.json").write_text("{}")
    assert is_presharded(tmp_path)


def test_files_to_carry_along_are_all_but_weights_indexes_and_hidden_ones(tmp_path):
    """(NVIDIA/Model-Optimizer#1245) Custom code goes along; it is not run."""
    write_checkpoint(tmp_path, SHARDS)
    wanted = [
        *("LICENSE", "README.md", "chat_template.jinja", "generation_config.json", "merges.txt"),
        *("modeling_own.py", "special_tokens_map.json", "tokenizer.json", "tokenizer.model", "vocab.json"),
        "additional_chat_templates/rag.jinja",
    ]
    unwanted = [
        *("pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.gguf", "tf_model.h5", "MODEL.ONNX"),
        *("flax_model.msgpack", "consolidated.safetensors", "consolidated.safetensors.index.json"),
        *(".gitattributes", ".cache/huggingface/x.lock", "original/params.json", "original/c.00.pth"),
        *("onnx/model.onnx", "onnx/config.json", "templates/.hidden"),
    ]
    for name in (*wanted, *unwanted):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('carried code was run')")
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "data.txt").open("wb") as file:
        file.truncate(17 << 20)
    (tmp_path / "many").mkdir()
    for number in range(1001):
        (tmp_path / "many" / f"{number}.txt").touch()
    (tmp_path / "linked").symlink_to("/etc")
    assert open_checkpoint(tmp_path).aux_files() == sorted([*wanted, "config.json"])


def test_what_cannot_be_carried_is_refused_by_name(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, SHARDS))
    (tmp_path / "README.md").symlink_to("../../blobs/0123")
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(TpspecError) as caught:
        checkpoint.aux_files()
    problems = {finding.subject: finding.problem for finding in caught.value.findings}
    assert problems == {
        "README.md": "is a link to ../../blobs/0123, which does not exist",
        "tokenizer.json": "is a named pipe, not a file",
    }


@pytest.mark.parametrize(
    "name",
    [
        *("back\\slash.txt", "new\nline.txt", "escape\x1b[2J.txt", os.fsdecode(b"bad\xff.txt")),
        *("tpspec.json", "tpspec.json.partial", "model-rank-00000-of-00002.safetensors.partial"),
        *("extras.safetensors.partial", "extras.safetensors/notes.txt", "docs/new\nline.txt"),
        "tpspec.json.partial/notes.txt",
    ],
)
def test_names_that_are_not_portable_or_ours_are_not_carried_and_named(tmp_path, name):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"model.safetensors": {"a": (1,)}}))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(TpspecError, match="holds files that cannot be copied") as caught:
        checkpoint.aux_files()
    (finding,) = caught.value.findings
    assert finding.subject == ascii(name)
    assert finding.remedy == "rename the file, or remove it"


@pytest.mark.parametrize("name", ["new\nline.safetensors", os.fsdecode(b"bad\xff.safetensors")])
def test_weights_in_a_file_whose_name_is_not_portable_are_refused(tmp_path, name):
    (finding,) = findings_of(write_checkpoint(tmp_path, {name: {"a": (1,)}}))
    assert finding.subject == ascii(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_folder_that_cannot_be_read_is_named(tmp_path, mode):
    open_to_others(tmp_path)
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"model.safetensors": {"a": (1,)}}))
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "chat.jinja").touch()
    (tmp_path / "templates").chmod(mode)
    os.seteuid(65534)
    try:
        with pytest.raises(TpspecError, match=r"templates.*: Permission denied"):
            checkpoint.aux_files()
    finally:
        os.seteuid(0)


DEEPSEEK = """
import json, re, sys, time
from pathlib import Path
from tpspec.checkpoint import open_checkpoint
start = time.perf_counter()
tensors = open_checkpoint(Path(sys.argv[1])).tensors
seconds = time.perf_counter() - start
# not ru_maxrss, which starts at what the parent had
peak_kb = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]
print(json.dumps([len(tensors), seconds, int(peak_kb) / 1024]))
"""


def test_a_checkpoint_of_a_thousand_files_is_opened_in_seconds(tmp_path):
    parts = [("gate_proj", (2048, 7168)), ("up_proj", (2048, 7168)), ("down_proj", (7168, 2048))]
    names = (
        (f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight", shape)
        for layer in range(119)
        for expert in range(256)
        for part, shape in parts
    )
    weight_map = {}
    for number in range(1, 1001):
        file_name = f"model-{number:05}-of-01000.safetensors"
        listed, stop = [], 0
        for _, (name, shape) in zip(range(91), names, strict=False):
            start, stop = stop, stop + shape[0] * shape[1]
            listed.append((name, "F8_E4M3", shape, start, stop))
            weight_map[name] = file_name
        header = encode_header(listed, {"format": "pt"})
        with (tmp_path / file_name).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + stop)
    write_index(tmp_path, weight_map)
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v3"}')
    command = [sys.executable, "-c", DEEPSEEK, str(tmp_path)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    count, seconds, mebibytes = json.loads(run.stdout)
    shutil.rmtree(tmp_path)
    assert count == 91_000
    assert seconds < 10
    assert mebibytes < 400
