from __future__ import annotations

import json
import os
from math import prod

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from tiny_files import entries, file_bytes

from tpspec.dtypes import BITS, nbytes
from tpspec.errors import MAX_FINDINGS, TpspecError
from tpspec.safetensors_header import encode_header, read_header

TWO = {"a": (2, 3), "b": (4,)}  # 12 and 8 bytes in BF16


def header(**changes):
    """The entries of TWO, with some fields of `b` changed."""
    table = entries(TWO)
    table["b"] |= changes
    return table


def findings_of(path, content):
    path.write_bytes(content)
    with pytest.raises(TpspecError) as caught:
        read_header(path)
    assert caught.value.findings
    assert all(finding.remedy or " more" in finding.problem for finding in caught.value.findings)
    return caught.value.findings


def test_a_sound_file_gives_its_tensors_in_the_order_of_their_bytes(tmp_path):
    table = entries({"late": (2, 3), "early": (4,)})
    table["late"]["data_offsets"], table["early"]["data_offsets"] = [8, 20], [0, 8]
    content = file_bytes({"__metadata__": {"format": "pt"}, **table}, data=20)
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    file = read_header(path)
    assert (file.name, file.path, file.size) == ("model.safetensors", path, len(content))
    assert content == len(file.header).to_bytes(8, "little") + file.header + content[-20:]
    early, late = file.tensors
    assert (early.name, early.dtype, early.shape, early.file) == ("early", "BF16", (4,), path.name)
    assert (early.start, early.stop) == (len(content) - 20, len(content) - 12)
    assert (late.start, late.stop) == (len(content) - 12, len(content))


def test_scalars_and_empty_tensors_are_sound(tmp_path):
    """(vllm#1696, vllm#1687) A scalar keeps its shape [], an empty tensor its shape [0]."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes(entries({"none": (0,), "k_scale": (), "wide": (3, 0, 2), "end": (0,)})))
    shapes = {tensor.name: tensor.shape for tensor in read_header(path).tensors}
    assert shapes == {"none": (0,), "k_scale": (), "wide": (3, 0, 2), "end": (0,)}


def test_a_file_without_tensors_is_sound(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes({}))
    assert read_header(path).tensors == ()


def test_every_dtype_of_the_table_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    stop, table = 0, {}
    for dtype in BITS:
        start, stop = stop, stop + nbytes(dtype, (2, 4))
        table[dtype] = {"dtype": dtype, "shape": [2, 4], "data_offsets": [start, stop]}
    path.write_bytes(file_bytes(table))
    assert {tensor.dtype for tensor in read_header(path).tensors} == set(BITS)
    with safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(BITS)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has 0 bytes, fewer than the 8"),
        (b"\x02\x00\x00", "has 3 bytes, fewer than the 8"),
        (bytes(8), "not JSON"),
        ((1000).to_bytes(8, "little") + b"{}", "gives its header 1000 bytes, but ends 2 bytes after"),
        (b"\xff" * 8 + b"{}", f"gives its header {2**64 - 1} bytes, more than the 100000000"),
        (file_bytes(b'{"a":', data=0), "not JSON"),
        (file_bytes(b"[]", data=0), "expected a JSON object, found list"),
        (file_bytes(b'{"a": "\xff\xfe"}', data=0), "not UTF-8"),
        (file_bytes(b'{"a": NaN}', data=0), "NaN is not a JSON number"),
        (file_bytes(b'{"a": ' + b"[" * 50_000, data=0), "nested too deeply"),
        (file_bytes(b'{"a": {"shape": [' + b"1" * 5000 + b"]}}", data=0), "more digits"),
        (
            file_bytes(json.dumps(entries(TWO)).replace('"b"', '"a"').encode(), data=20),
            "key 'a' stands 2 times",
        ),
        (
            file_bytes(
                b'{"a": {"dtype": "U8", "dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}', data=1
            ),
            "key 'dtype' stands 2 times",
        ),
        (file_bytes(entries(TWO), data=13), "is cut off"),
        (file_bytes(entries(TWO), data=0), "is cut off"),
        (file_bytes(entries(TWO), data=21), "1 more than the"),
        (file_bytes({}, data=5), "5 more than the"),
    ],
)
def test_an_unsound_file_is_refused_by_one_finding_that_names_it(tmp_path, content, problem):
    (finding,) = findings_of(tmp_path / "bad.safetensors", content)
    assert finding.subject == "bad.safetensors"
    assert problem in finding.problem
    assert "download the file again" in finding.remedy


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (header(dtype="F7"), "has the unknown dtype 'F7'"),
        (header(dtype=None), "has the unknown dtype None"),
        (header(dtype=["BF16"]), "has the unknown dtype ['BF16']"),
        (header(dtype="F32"), "takes bytes 12 to 20, which is 8, but F32 [4] needs 16"),
        (header(shape=[5]), "takes bytes 12 to 20, which is 8, but BF16 [5] needs 10"),
        (header(dtype="F4", shape=[3]), "F4 [3] does not fill whole bytes"),
        (header(shape=[4.0]), "has no shape of at most 64 counts, but [4.0]"),
        (header(shape=[-4]), "has no shape of at most 64 counts, but [-4]"),
        (header(shape=[True]), "has no shape of at most 64 counts, but [True]"),
        (header(shape=["4"]), "has no shape of at most 64 counts, but ['4']"),
        (header(shape=4), "has no shape of at most 64 counts, but 4"),
        (header(shape=None), "has no shape of at most 64 counts, but None"),
        (header(shape=[1] * 65), "has no shape of at most 64 counts"),
        (header(shape=[2**62, 2**62, 0], data_offsets=[12, 12]), "has the absurd shape"),
        (header(shape=[10**30, 0], data_offsets=[12, 12]), "has the absurd shape"),
        (header(data_offsets=[12]), "has no data_offsets of a start and a stop, but [12]"),
        (header(data_offsets=[12, 16, 20]), "has no data_offsets of a start and a stop"),
        (header(data_offsets=[12, 20.0]), "has no data_offsets of a start and a stop"),
        (header(data_offsets=[-8, 0]), "has no data_offsets of a start and a stop"),
        (header(data_offsets=[20, 12]), "takes bytes 20 to 12, which is -8"),
        (header(data_offsets="12"), "has no data_offsets of a start and a stop"),
        ({**entries(TWO), "b": [1]}, "is not described by a JSON object"),
        ({**entries(TWO), "b": None}, "is not described by a JSON object"),
    ],
)
def test_an_unsound_tensor_is_refused_by_one_finding_that_names_it(tmp_path, table, problem):
    (finding,) = findings_of(tmp_path / "bad.safetensors", file_bytes(table, data=20))
    assert (finding.subject, finding.place) == ("b", "bad.safetensors")
    assert problem in finding.problem


@pytest.mark.parametrize(
    ("offsets", "size", "problem"),
    [
        ([10, 18], 20, "they overlap by 2 bytes"),
        ([0, 8], 12, "they overlap by 8 bytes"),
        ([16, 24], 24, "4 bytes belong to no tensor"),
    ],
)
def test_overlaps_and_gaps_are_refused_naming_both_tensors(tmp_path, offsets, size, problem):
    findings = findings_of(tmp_path / "bad.safetensors", file_bytes(header(data_offsets=offsets), data=size))
    assert problem in findings[0].problem
    assert {"a", "b"} <= {findings[0].subject, *findings[0].problem.replace(",", "").split()}


def test_two_names_of_the_same_bytes_are_an_overlap(tmp_path):
    table = {"a": entries(TWO)["a"], "alias": entries(TWO)["a"]}
    (finding,) = findings_of(tmp_path / "bad.safetensors", file_bytes(table))
    assert "overlap by 12 bytes" in finding.problem


def test_data_that_does_not_start_behind_the_header_is_a_gap(tmp_path):
    table = {"b": entries(TWO)["b"]}
    (finding,) = findings_of(tmp_path / "bad.safetensors", file_bytes(table))
    assert finding.subject == "b"
    assert "is the first, but starts 12 bytes after the header's end" in finding.problem


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "\x1b[31mred", "\u202eright"])
def test_a_name_that_cannot_be_printed_is_refused_and_shown_escaped(tmp_path, name):
    (finding,) = findings_of(tmp_path / "bad.safetensors", file_bytes(entries({name: (1,)})))
    assert "is no name for a tensor" in finding.problem
    assert finding.subject == ascii(name)


@pytest.mark.parametrize("metadata", [None, [], "pt", {"format": 1}, {"format": None}])
def test_metadata_other_than_strings_is_refused(tmp_path, metadata):
    (finding,) = findings_of(tmp_path / "bad.safetensors", file_bytes({"__metadata__": metadata}, data=0))
    assert finding.subject == "__metadata__"


def test_all_findings_are_reported_at_once_up_to_a_limit(tmp_path):
    table = entries({f"t{n}": (2,) for n in range(20)})
    for entry in table.values():
        entry["dtype"] = "F7"
    findings = findings_of(tmp_path / "bad.safetensors", file_bytes(table))
    assert len(findings) == MAX_FINDINGS + 1
    assert findings[-1].problem == "… and 12 more"


@pytest.mark.parametrize("offsets", [["9" * 4300, "9" * 4300], ["0", "9" * 4000], [str(1 << 63)] * 2])
def test_offsets_of_thousands_of_digits_are_refused(tmp_path, offsets):
    text = json.dumps({"a": {"dtype": "U8", "shape": [0], "data_offsets": "HERE"}})
    content = text.replace('"HERE"', f"[{', '.join(offsets)}]").encode()
    (finding,) = findings_of(tmp_path / "bad.safetensors", file_bytes(content, data=0))
    assert "has no data_offsets of a start and a stop" in finding.problem


def test_names_of_any_length_are_printed_in_part(tmp_path):
    long = {"a" * 100_000: (2,), "b" * 100_000: (2,)}
    table = entries(long)
    table["b" * 100_000]["data_offsets"] = [2, 6]
    findings = findings_of(tmp_path / "bad.safetensors", file_bytes(table))
    assert "aaa…aaa" in str(findings[0])
    assert all(len(str(finding)) < 2000 for finding in findings)


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda _: None, "does not exist"),
        (lambda path: path.symlink_to("nowhere/blob"), "is a link to nowhere/blob, which does not exist"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (lambda path: path.mkdir(), "is a directory, not a file"),
        (os.mkfifo, "is a named pipe, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
    ],
    ids=["absent", "dangling", "circle", "directory", "pipe", "device"],
)
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, make, problem):
    path = tmp_path / "model.safetensors"
    make(path)
    with pytest.raises(TpspecError) as caught:
        read_header(path)
    (finding,) = caught.value.findings
    assert finding.subject == "model.safetensors"
    assert problem in finding.problem


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(st.dictionaries(NAMES, SHAPES, max_size=6), st.dictionaries(NAMES, st.text(max_size=5), max_size=2))
def test_an_encoded_header_is_read_back_by_us_and_by_safetensors(tmp_path, shapes, metadata):
    assume("__metadata__" not in shapes)
    listed, stop = [], 0
    for name, shape in shapes.items():
        start, stop = stop, stop + 4 * prod(shape)
        listed.append((name, "F32", shape, start, stop))
    encoded = encode_header(listed, metadata)
    assert len(encoded) % 8 == 0
    path = tmp_path / "x.safetensors"
    path.write_bytes(encoded + bytes(stop))
    file = read_header(path)
    assert {tensor.name: tensor.shape for tensor in file.tensors} == shapes
    assert len(encoded) == 8 + len(file.header)
    assert list(json.loads(file.header))[-len(shapes) :] == list(shapes) or not shapes
    with safe_open(path, framework="np") as opened:
        assert set(opened.keys()) == set(shapes)
        assert (opened.metadata() or {}) == metadata


def test_what_safetensors_writes_is_read_with_the_same_bytes(tmp_path):
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.arange(5, dtype=np.int8)}
    path = tmp_path / "x.safetensors"
    save_file(arrays, path)
    content = path.read_bytes()
    for tensor in read_header(path).tensors:
        array = arrays[tensor.name]
        assert tensor.shape == array.shape
        assert content[tensor.start : tensor.stop] == array.tobytes()


SOUND = file_bytes(
    {"__metadata__": {"format": "pt"}, **entries({"a": (2, 3), "b": (), "c": (0,), "d": (4,)})}
)


@given(
    st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=3),
    st.integers(0, len(SOUND)),
)
@example([(0, SOUND[0])], len(SOUND))
@settings(max_examples=1000)
def test_a_damaged_file_is_refused_or_also_read_by_safetensors(tmp_path, changes, length):
    content = bytearray(SOUND)
    for position, value in changes:
        content[position] = value
    content = content[:length] if length % 4 == 0 else content
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    try:
        file = read_header(path)
    except TpspecError:
        return
    with safe_open(path, framework="np") as opened:
        assert set(opened.keys()) == {tensor.name for tensor in file.tensors}


def with_json_damage(table):
    """Replaces one value somewhere in a header by any JSON value."""
    values = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.integers())
    )
    spots = [(name, key) for name, entry in table.items() for key in entry]
    return st.tuples(st.sampled_from(spots), values)


@given(with_json_damage(entries(TWO)))
@settings(max_examples=300)
def test_a_header_with_a_wrong_value_is_refused_or_also_read_by_safetensors(tmp_path, damage):
    (name, key), value = damage
    table = entries(TWO)
    table[name][key] = value
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes(table, data=20))
    try:
        read_header(path)
    except TpspecError:
        return
    with safe_open(path, framework="np"):
        pass
