"""pytorch_model*.bin as a source: unpickled without code, tensors mapped, one file at a time.

The one part of the converter that needs torch. What merging writes are safetensors files with the
same values, named after the .bin files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpspec import json_strict
from tpspec.checkpoint import Checkpoint, StoredFile, StoredTensor
from tpspec.converters.bin_file import Tensors, load_bin
from tpspec.converters.open_files import stamp
from tpspec.converters.sinks import Bytes
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.safetensors_header import encode_header, parse_header

if TYPE_CHECKING:
    import torch

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
"""torch's name of an element type → that of safetensors."""


class BinReader:
    """Reads .bin files as if they were safetensors files. Tensors that share memory are each read whole."""

    losses = ("the source was .bin files",)

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises TpspecError for a file that is no plain table of tensors."""
        self._directory = checkpoint.directory
        self._names = _safetensors_names(checkpoint.bin_files)
        self._loaded: tuple[str, Tensors] = ("", {})
        self._viewed: tuple[str, Bytes | None] = ("", None)
        files = tuple(self._describe(name) for name in self._names)
        index = _index(checkpoint.index, self._names, files)
        self.checkpoint = replace(checkpoint, files=files, index=index, format="safetensors", bin_files=())

    def read(self, tensor: StoredTensor, start: int, out: Bytes) -> None:
        if self._viewed[0] != tensor.name:
            self._viewed = (tensor.name, _bytes(self._load(tensor.file)[tensor.name]))
        data = self._viewed[1]
        assert data is not None
        out[:] = data[start : start + out.size]

    def copied(self) -> Sequence[str]:
        return self.checkpoint.aux_files()

    def stamps(self) -> dict[str, list[int]]:
        return {name: stamp(self._directory / name) for name in self._names.values()}

    def digests(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self._loaded, self._viewed = ("", {}), ("", None)

    def _load(self, name: str) -> Tensors:
        if self._loaded[0] != name:
            self.close()
            self._loaded = (name, load_bin(self._directory / self._names[name]))
        return self._loaded[1]

    def _describe(self, name: str) -> StoredFile:
        """The safetensors file that would hold a .bin file's tensors in their order."""
        entries, position, findings = [], 0, []
        for key, value in self._load(name).items():
            problem = _problem(key, value)
            if problem:
                subject = key if isinstance(key, str) and key and key.isprintable() else ascii(key)
                findings.append(Finding(subject, problem, place=self._names[name]))
                continue
            start, position = position, position + value.numel() * value.element_size()
            entries.append((key, DTYPES[_dtype(value)], tuple(value.shape), start, position))
        if findings:
            raise TpspecError(f"{self._names[name]} is not a table of tensors", first_findings(findings))
        header = encode_header(entries, {"format": "pt"})
        return parse_header(self._directory / name, header[8:], len(header) + position)


def _problem(key: Any, value: Any) -> str:
    """Why an entry cannot be converted; empty where it can."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__}, not a tensor"
    if value.layout != torch.strided or value.is_quantized or _dtype(value) not in DTYPES:
        return f"is a tensor of {value.dtype}, {value.layout}, which safetensors cannot hold"
    if value.is_meta:
        return "is a meta tensor: it has a shape, but no numbers"
    if not isinstance(key, str) or not key.isprintable() or key in {"", "__metadata__"}:
        return "is no name for a tensor"
    return ""


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> Bytes:
    """A tensor's bytes, row-major; a copy only where it is laid out otherwise."""
    import torch

    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    data: Bytes = flat.view(torch.uint8).numpy()
    return data


def _safetensors_names(names: Sequence[str]) -> dict[str, str]:
    """Names of safetensors files → of .bin files, which keep their prefix where they would clash."""
    whole = [f"{name.removesuffix('.bin')}.safetensors" for name in names]
    short = [name.removeprefix("pytorch_") for name in whole]
    return dict(zip(short if len(set(short)) == len(short) else whole, names, strict=True))


def _index(text: bytes | None, names: Mapping[str, str], files: Sequence[StoredFile]) -> bytes | None:
    """The index for the safetensors files. Raises TpspecError where the .bin files do not match theirs."""
    findings = []
    held: dict[str, str] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in held:
                problem = f"is in {names[held[tensor.name]]} and in {names[file.name]}"
                findings.append(Finding(tensor.name, problem))
            held[tensor.name] = file.name
    if text is not None:
        document = json_strict.loads(text, "pytorch_model.bin.index.json")
        listed, stored = document["weight_map"], {name: names[file] for name, file in held.items()}
        findings += [
            Finding(name, f"is listed in {listed.get(name)}, but is in {stored.get(name)}", "the index")
            for name in sorted(listed.keys() | stored.keys())
            if listed.get(name) != stored.get(name)
        ]
        text = json.dumps(document | {"weight_map": held}, indent=2).encode() + b"\n"
    if findings:
        raise TpspecError("the .bin files and their index do not agree", first_findings(findings))
    return text
