"""pytorch_model*.bin as sources."""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tpspec.converters.convert import convert
from tpspec.converters.merge import merge
from tpspec.converters.readers import PreshardedReader, Reader
from tpspec.converters.sources import open_source
from tpspec.converters.verify import verify
from tpspec.errors import TpspecError
from tpspec.layout import Cut, Layout, Segment, TensorLayout, whole
from tpspec.presharded import Presharded


def write(folder: Path, files: Mapping[str, object], *, index: bool = False) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    weight_map: dict[str, str] = {}
    for name, content in files.items():
        torch.save(content, folder / name)
        weight_map |= dict.fromkeys(content, name) if isinstance(content, Mapping) else {}
    if index:
        document = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(document))
    return folder


def halves(reader: Reader) -> Layout:
    """Cuts every matrix in two along its last dimension."""
    tensors = {}
    for name, stored in reader.checkpoint.tensors.items():
        cut = whole(2)
        if len(stored.shape) == 2:
            size = stored.shape[1]
            half = size // 2
            cut = Cut(1, size, ((Segment(0, half),), (Segment(half, size - half),)))
        tensors[name] = TensorLayout(name, stored.dtype, stored.shape, cut)
    return Layout(2, "halves", tensors)


def round_trip(folder: Path, source: Path) -> dict[str, torch.Tensor]:
    reader = open_source(str(source))
    convert(reader, folder / "cut", halves(reader), strip_bytes=1000)
    assert not verify(folder / "cut", reader).findings
    merged = merge(PreshardedReader(Presharded.open(folder / "cut")), folder / "merged")
    assert merged.losses == ("the source was .bin files",)
    files = (folder / "merged").glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def test_every_element_type_and_layout_comes_out_with_equal_values(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    types = [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint16, torch.int64, torch.bool]
    tensors = {str(dtype): base.to(dtype) for dtype in types}
    tensors |= {
        "f8": base.to(torch.float8_e4m3fn),
        "complex": base.to(torch.complex64) * 1j,
        "transposed": base.t(),
        "strided": base[::2, ::3],
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 6),
        "view": base[1:3],
    }
    found = round_trip(tmp_path, write(tmp_path / "source", {"pytorch_model.bin": tensors}))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].tolist() == tensor.tolist()


def test_tied_tensors_that_share_memory_are_saved_under_each_name(tmp_path: Path) -> None:
    """NVIDIA-NeMo/Megatron-Bridge#919."""
    embedding = torch.randn(10, 8)
    tied = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
    found = round_trip(tmp_path, write(tmp_path / "source", {"pytorch_model.bin": OrderedDict(tied)}))
    assert all(torch.equal(found[name], embedding) for name in tied)


def test_indexed_files_become_as_many_safetensors_files_and_an_index(tmp_path: Path) -> None:
    files = {
        "pytorch_model-00001-of-00002.bin": {"a": torch.randn(4, 4), "c": torch.randn(3)},
        "pytorch_model-00002-of-00002.bin": {"b": torch.randn(2, 6)},
    }
    found = round_trip(tmp_path, write(tmp_path / "source", files, index=True))
    assert set(found) == {"a", "b", "c"}
    index = json.loads((tmp_path / "merged" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        "a": "model-00001-of-00002.safetensors",
        "c": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
    assert {p.name for p in (tmp_path / "merged").iterdir()} == {
        "config.json",
        "model.safetensors.index.json",
        *index["weight_map"].values(),
    }


def test_files_of_old_torch_versions_are_read(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {})
    weight = torch.randn(4, 4)
    torch.save({"w": weight}, source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(round_trip(tmp_path, source)["w"], weight)


class Code:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/it-ran",)


def refused(source: Path) -> str:
    with pytest.raises(TpspecError) as error:
        open_source(str(source))
    return str(error.value)


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = Path("/tmp/it-ran")
    marker.unlink(missing_ok=True)
    text = refused(write(tmp_path / "source", {"pytorch_model.bin": {"w": torch.ones(2), "x": Code()}}))
    assert "pytorch_model.bin holds more than tensors" in text
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "holds a list, not a table of tensors"),
        ({"step": 3, "w": torch.ones(2)}, "step: is a int, not a tensor"),
        ({"state_dict": {"w": torch.ones(2)}}, "state_dict: is a dict, not a tensor"),
        ({"s": torch.ones(2, 2).to_sparse()}, "s: is a tensor of torch.float32, torch.sparse_coo"),
        ({3: torch.ones(2)}, "3: is no name for a tensor"),
        ({"": torch.ones(2)}, "'': is no name for a tensor"),
        ({"__metadata__": torch.ones(2)}, "__metadata__: is no name for a tensor"),
        ({"half \ud800": torch.ones(2)}, "'half \\ud800': is no name for a tensor (pytorch_model.bin)"),
        ({"new\nline": torch.ones(2)}, "'new\\nline': is no name for a tensor (pytorch_model.bin)"),
        ({"m": torch.ones(2, device="meta")}, "m: is a meta tensor"),
        ({str(n): n for n in range(20)}, "… and 12 more"),
    ],
)
def test_what_is_no_table_of_tensors_is_refused(tmp_path: Path, content: object, message: str) -> None:
    text = refused(write(tmp_path / "source", {"pytorch_model.bin": content}))
    assert message in text
    assert "model.safetensors" not in text


def test_tensors_that_are_stored_negated_or_conjugated_come_out_with_equal_values(tmp_path: Path) -> None:
    numbers = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "negated": torch._neg_view(numbers),
        "conjugated": torch.complex(numbers, numbers + 1).conj(),
        "imaginary": torch.complex(numbers, numbers + 1).conj().imag,
    }
    expected = {name: tensor.tolist() for name, tensor in tensors.items()}
    found = round_trip(tmp_path, write(tmp_path / "source", {"pytorch_model.bin": tensors}))
    assert {name: tensor.tolist() for name, tensor in found.items()} == expected


def test_files_whose_short_names_would_clash_keep_their_long_ones(tmp_path: Path) -> None:
    files = {"pytorch_model-a.bin": {"a": torch.zeros(4)}, "model-a.bin": {"b": torch.ones(4)}}
    found = round_trip(tmp_path, write(tmp_path / "source", files, index=True))
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [0] * 4, "b": [1] * 4}
    index = json.loads((tmp_path / "merged" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"a": "pytorch_model-a.safetensors", "b": "model-a.safetensors"}


def test_broken_files_are_one_clear_error(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"pytorch_model.bin": {"w": torch.ones(1000)}})
    whole_file = (source / "pytorch_model.bin").read_bytes()
    half = len(whole_file) // 2
    random = np.random.default_rng(0).bytes(1000)
    for broken in (b"", b"PK\x03\x04", whole_file[:half], b"not a pickle at all", whole_file[half:], random):
        (source / "pytorch_model.bin").write_bytes(broken)
        assert "pytorch_model.bin is not a PyTorch checkpoint file" in refused(source)
    with zipfile.ZipFile(source / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", "nonsense")
    assert "pytorch_model.bin is damaged" in refused(source)
    torch.save({"w": torch.ones(9)}, source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    old_file = (source / "pytorch_model.bin").read_bytes()
    for stop in (20, 60, len(old_file) - 4):
        (source / "pytorch_model.bin").write_bytes(old_file[:stop])
        assert "pytorch_model.bin is damaged" in refused(source)


class Unknown:
    pass


@pytest.mark.parametrize("content", [{"x": Code()}, {"x": Unknown()}])
@pytest.mark.parametrize("zipped", [True, False])
def test_torchs_advice_to_load_it_nevertheless_is_not_passed_on(
    tmp_path: Path, content: object, zipped: bool
) -> None:
    source = write(tmp_path / "source", {})
    torch.save(content, source / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    text = refused(source)
    assert re.search(r"pytorch_model.bin: holds (posix.system|\S+\.Unknown)\n", text)
    assert "weights_only" not in text
    assert "options" not in text


@given(st.integers(0, 2000), st.integers(1, 255))
def test_a_flipped_byte_is_our_error_or_unnoticed(tmp_path: Path, place: int, change: int) -> None:
    if not (tmp_path / "source").exists():
        write(tmp_path / "source", {"whole": {"w": torch.ones(4), "v": torch.ones(2, 3)}})
    content = bytearray((tmp_path / "source" / "whole").read_bytes())
    content[place % len(content)] ^= change
    (tmp_path / "source" / "pytorch_model.bin").write_bytes(content)
    with contextlib.suppress(TpspecError):
        open_source(str(tmp_path / "source"))


def test_an_index_that_does_not_match_is_refused(tmp_path: Path) -> None:
    files = {"pytorch_model-00001-of-00001.bin": {"a": torch.ones(2)}}
    source = write(tmp_path / "source", files, index=True)
    torch.save({"b": torch.ones(2)}, source / "pytorch_model-00001-of-00001.bin")
    text = refused(source)
    assert "a: is listed in pytorch_model-00001-of-00001.bin, but is in None" in text


def test_numbers_are_not_changed(tmp_path: Path) -> None:
    bits = torch.from_numpy(np.arange(65536, dtype=np.uint16).reshape(256, 256)).view(torch.bfloat16)
    found = round_trip(tmp_path, write(tmp_path / "source", {"pytorch_model.bin": {"w": bits}}))
    assert torch.equal(found["w"].view(torch.int16), bits.view(torch.int16))
