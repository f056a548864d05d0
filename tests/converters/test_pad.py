"""`tpspec pad`: a padded model as an ordinary checkpoint, which transformers loads by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from tpspec.converters.pad import RECORD, pad
from tpspec.converters.sources import open_source
from tpspec.errors import TpspecError
from tpspec.language.registry import spec_for
from tpspec.padded_model import ALIGN, Architecture, architectures, padded_model
from tpspec.padding import Order
from tpspec.padding_report import padding_of
from tpspec.resolve import resolve_checked
from tpspec.runtime.tiny import tiny_model

QWEN = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 28}
SIX = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
QWEN_7B = {"hidden_size": 224, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 148}


def saved(folder: Path, kind: str, changes: Mapping[str, Any]) -> tuple[Path, PreTrainedModel]:
    model = tiny_model(replace(spec_for([kind]), model_types=(kind,)), changes)
    model.save_pretrained(folder)
    return folder, model


def padded(source: Path, out: Path, tp: int, order: Order = "kv", **options: Any) -> Path:
    reader = open_source(str(source))
    resolution = resolve_checked(reader.checkpoint, tp, None, order, ALIGN)
    pad(reader, out, padded_model(reader.checkpoint, resolution, tp), {"order": order}, **options)
    return out


def logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids).logits


@pytest.mark.parametrize(
    ("kind", "written", "tp", "changes"),
    [
        ("llama", "llama", 2, SIX),  # of 48, which 8 heads divide
        ("llama", "granite", 3, {}),  # 12 heads do not divide 64, and there are biases
        ("llama", "mistral", 3, {"attention_bias": False, "mlp_bias": False}),
        ("mistral", "mistral", 5, {}),
        ("qwen2", "llama", 8, QWEN | QWEN_7B),  # 32 heads divide 224
        ("qwen2", "granite", 3, QWEN | QWEN_7B),
        ("qwen3", "qwen3", 3, {}),
        ("qwen3_moe", "qwen3_moe", 5, {}),
        ("mixtral", "mixtral", 3, {}),
        ("gemma", "gemma", 5, {}),
        ("gemma2", "gemma2", 2, SIX),
        ("gemma3_text", "gemma3_text", 2, SIX),
        ("granite", "granite", 5, {}),
    ],
)
def test_transformers_loads_the_padded_model_and_gives_its_logits(
    kind: str, written: str, tp: int, changes: Mapping[str, Any], tmp_path: Path
) -> None:
    source, model = saved(tmp_path / "source", kind, changes)
    out = padded(source, tmp_path / "out", tp)
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ids = torch.randint(model.config.vocab_size, (2, 11), generator=torch.Generator().manual_seed(1))
    wanted = logits(model, ids)
    assert loaded.config.model_type == written
    assert (logits(loaded, ids) - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert loaded.config.num_attention_heads % tp == loaded.config.num_key_value_heads % tp == 0
    resolve_checked(open_source(str(out)).checkpoint, tp)  # it fits, without padding


def test_the_order_that_keeps_weights_small_copies_heads_side_by_side(tmp_path: Path) -> None:
    changes = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 2, "attention_bias": False}
    source, model = saved(tmp_path / "source", "llama", changes | {"mlp_bias": False, "num_hidden_layers": 1})
    ids = torch.arange(12)[None]
    for order, heads in (("kv", (96, 12)), ("weights", (72, 18))):
        out = padded(source, tmp_path / order, 6, order, strip_bytes=128)  # type: ignore[arg-type]
        loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
        assert (loaded.config.num_attention_heads, loaded.config.num_key_value_heads) == heads
        assert (logits(loaded, ids) - logits(model, ids)).abs().max() < 1e-5


def test_copies_of_kv_heads_alone_are_padding_too(tmp_path: Path) -> None:
    """15 query heads to a KV head: three copies of 4 make 12 slots for 6 ranks, with no zeros in them."""
    changes = {"num_attention_heads": 60, "num_key_value_heads": 4, "head_dim": 2, "intermediate_size": 96}
    source, model = saved(tmp_path / "source", "mistral", changes | {"num_hidden_layers": 1})
    resolution = resolve_checked(open_source(str(source)).checkpoint, 6, None, "weights", ALIGN)
    (kv,) = padding_of(resolution, 6).axes
    assert (kv.axis, kv.units, kv.held, kv.copies, kv.zeros) == ("kv", 4, 12, 3, 0)
    ids = torch.arange(12)[None]
    out = padded(source, tmp_path / "out", 6, "weights")
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    assert (loaded.config.num_attention_heads, loaded.config.num_key_value_heads) == (60, 12)
    assert (logits(loaded, ids) - logits(model, ids)).abs().max() < 1e-5


@contextmanager
def stopped_at(done: int) -> Iterator[Any]:
    def stop(bytes_done: int, total: int) -> None:
        del total
        if bytes_done > done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        yield stop


def test_an_interrupted_run_looks_like_no_model_and_goes_on(tmp_path: Path) -> None:
    source, _ = saved(tmp_path / "source", "mistral", {})
    wanted = padded(source, tmp_path / "wanted", 3)
    out = tmp_path / "out"
    small = {"strip_bytes": 1 << 10, "sync_bytes": 1 << 12}
    with stopped_at(40_000) as stop:
        padded(source, out, 3, progress=stop, **small)
    assert not (out / "config.json").exists()
    assert not list(out.glob("*.safetensors"))
    with pytest.raises(TpspecError, match="was begun by another conversion"):
        padded(source, out, 5, **small)
    read: list[int] = []
    padded(source, out, 3, progress=lambda done, _: read.append(done), **small)
    assert read[0] > 20_000
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert files == {path.name: path.read_bytes() for path in wanted.iterdir()}
    with pytest.raises(TpspecError, match="is complete already"):
        padded(source, out, 3)


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        (kind, entry)
        for entry in architectures().architectures
        if "model_type" in entry.write
        for kind in entry.of
    ],
    ids=lambda value: value if isinstance(value, str) else value.write["model_type"],
)
def test_what_a_config_leaves_out_means_the_same_to_the_other_class(kind: str, entry: Architecture) -> None:
    own, other = CONFIG_MAPPING[kind]().to_dict(), CONFIG_MAPPING[entry.write["model_type"]]().to_dict()
    said = {"vocab_size", *architectures().common, *entry.config, *entry.write, *entry.leave_out}
    differing = {key: own[key] for key in own.keys() & other.keys() - said if own[key] != other[key]}
    assert differing == entry.defaults


def test_the_record_says_what_was_padded(tmp_path: Path) -> None:
    source, _ = saved(tmp_path / "source", "mistral", {})
    record = json.loads((padded(source, tmp_path / "out", 3) / RECORD).read_text())
    assert (record["tp"], record["order"], list(record["xxh3_128"])) == (3, "kv", ["model.safetensors"])


@pytest.mark.parametrize(
    ("kind", "changes", "reasons"),
    [
        ("qwen2", {}, ["Llama has no sliding windows", "Granite has no sliding windows"]),
        ("olmo2", {}, ["no architecture is known that could say how it was padded"]),
        ("gemma2", {}, ["transformers wants head counts of it that divide hidden_size"]),
    ],
)
def test_what_no_architecture_can_say_is_refused_with_every_reason(
    kind: str, changes: Mapping[str, Any], reasons: list[str], tmp_path: Path
) -> None:
    source, _ = saved(tmp_path / "source", kind, changes)
    with pytest.raises(TpspecError) as refused:
        padded(source, tmp_path / "out", 3)
    assert all(reason in str(refused.value) for reason in reasons)
    assert "tpspec convert --pad" in refused.value.remedy
    assert not (tmp_path / "out").exists()


def test_a_refusal_has_the_numbers_and_the_sizes_that_work(tmp_path: Path) -> None:
    source, _ = saved(tmp_path / "source", "gemma2", SIX)
    with pytest.raises(TpspecError) as refused:
        padded(source, tmp_path / "out", 5)
    assert "where hidden_size = 48, tp = 5, local(q) = 2" in str(refused.value)
    assert refused.value.remedy.startswith("tp that work: 2, 3, 4, ")
