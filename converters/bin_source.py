"""pytorch_model*.bin as a source: unpickled without code, tensors mapped, one file at a time.

The one part of the converter that needs torch. What merging writes are safetensors files with the
same values, named after the .bin files.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpspec import json_strict
from tpspec.checkpoint import Checkpoint, StoredFile, StoredTensor
from tpspec.converters.open_files import stamp
from tpspec.converters.sinks import Bytes
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.safetensors_header import encode_header, parse_header

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

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

ZIP = b"PK\x03\x04"
"""How a file begins that can be mapped; those of torch before 1.6 cannot."""


class BinReader:
    """Reads .bin files as if they were safetensors files. Tensors that share memory are each read whole."""

    losses = ("the source was .bin files",)

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises TpspecError for a file that is no plain table of tensors."""
        self._directory = checkpoint.directory
        self._names = {_safetensors_name(name): name for name in checkpoint.bin_files}
        self._loaded: tuple[str, Tensors] = ("", {})
        self._viewed: tuple[str, Bytes | None] = ("", None)
        files = tuple(self._describe(name) for name in self._names)
        self.checkpoint = replace(
            checkpoint, files=files, index=_index(checkpoint.index, files), format="safetensors", bin_files=()
        )

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
            self._loaded = (name, _load(self._directory / self._names[name]))
        return self._loaded[1]

    def _describe(self, name: str) -> StoredFile:
        """The safetensors file that would hold a .bin file's tensors in their order."""
        entries, position, findings = [], 0, []
        for key, value in self._load(name).items():
            problem = _problem(key, value)
            if problem:
                findings.append(Finding(str(key), problem, place=self._names[name]))
                continue
            start, position = position, position + value.numel() * value.element_size()
            entries.append((key, DTYPES[_dtype(value)], tuple(value.shape), start, position))
        if findings:
            raise TpspecError(f"{self._names[name]} is not a table of tensors", findings)
        header = encode_header(entries, {"format": "pt"})
        return parse_header(self._directory / name, header[8:], len(header) + position)


def _load(path: Path) -> Tensors:
    try:
        import torch
    except ImportError as error:
        remedy = "pip install 'tpspec[torch]', or convert the model to safetensors first"
        raise TpspecError(f"{path.name} needs torch to be read", remedy=remedy) from error
    try:
        with path.open("rb") as file:
            mapped = file.read(4) == ZIP
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise TpspecError(
            f"{path.name} holds more than tensors; unpickling it could run code, so it is not read",
            [Finding(path.name, str(error).splitlines()[0])],
            remedy="get the model as safetensors, or convert it where you trust it",
        ) from error
    except Exception as error:  # the unpickler raises whatever a broken file leads to
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "download the file again"
        raise TpspecError(f"{path.name} cannot be read", [Finding(path.name, problem)], remedy) from error
    if not isinstance(loaded, Mapping):
        raise TpspecError(f"{path.name} holds a {type(loaded).__name__}, not a table of tensors")
    return loaded


def _problem(key: Any, value: Any) -> str:
    """Why an entry cannot be converted; empty where it can."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__}, not a tensor"
    if value.layout != torch.strided or value.is_quantized or _dtype(value) not in DTYPES:
        return f"is a tensor of {value.dtype}, {value.layout}, which safetensors cannot hold"
    if not isinstance(key, str):
        return "has no name"
    return ""


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> Bytes:
    """A tensor's bytes, row-major; a copy only where it is laid out otherwise."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    data: Bytes = flat.view(torch.uint8).numpy()
    return data


def _safetensors_name(name: str) -> str:
    return name.removeprefix("pytorch_").removesuffix(".bin") + ".safetensors"


def _index(text: bytes | None, files: Sequence[StoredFile]) -> bytes | None:
    """The index for the safetensors files. Raises TpspecError where the .bin files do not match theirs."""
    findings = []
    held: dict[str, str] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in held:
                findings.append(Finding(tensor.name, f"is in {held[tensor.name]} and in {file.name}"))
            held[tensor.name] = file.name
    if text is not None:
        document = json_strict.loads(text, "pytorch_model.bin.index.json")
        listed = {name: _safetensors_name(file) for name, file in document["weight_map"].items()}
        findings += [
            Finding(name, f"is listed in {listed.get(name)}, but is in {held.get(name)}", "the index")
            for name in sorted(listed.keys() | held.keys())
            if listed.get(name) != held.get(name)
        ]
        text = json.dumps(document | {"weight_map": held}, indent=2).encode() + b"\n"
    if findings:
        raise TpspecError("the .bin files and their index do not agree", first_findings(findings))
    return text
