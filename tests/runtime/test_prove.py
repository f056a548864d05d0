"""Every spec is proved: at tp 2 and 4, and at 8 with KV heads copied where they are grouped."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from click.testing import CliRunner
from tiny_models import VARIANTS, Variant

from tpspec.cache import cache_size
from tpspec.cli.app import app
from tpspec.errors import TpspecError
from tpspec.language.registry import spec_from_file, spec_named
from tpspec.planning.weights import inventory
from tpspec.resolve import resolve
from tpspec.runtime.comparing import DECODE_STEPS
from tpspec.runtime.decoding import keeps
from tpspec.runtime.proof import Proof
from tpspec.runtime.prove import Subject, checkpoint_subject, prove, tiny_subject
from tpspec.sites import COLLECTIVES, implied_sites

STORIES = Path(__file__).parents[1] / "models" / "stories260k"


MODELS = [variant for variant in VARIANTS if variant.name == "tiny" or variant.config]
"""The variants that are another model, and not only another way to store one."""


@pytest.mark.parametrize("variant", MODELS, ids=str)
def test_every_spec_gives_the_unsharded_model_s_logits(variant: Variant) -> None:
    with tiny_subject(variant.spec, changes=variant.config) as subject:
        sizes = [tp for tp in (2, 4, 8) if subject.resolution.fits(tp)]
        assert sizes[:2] == [2, 4]
        proofs = [prove(subject, tp) for tp in sizes]
    assert [proof.failure for proof in proofs] == [""] * len(sizes)
    assert max(proof.error for proof in proofs) < 1e-5
    assert all(proof.counted == proof.predicted for proof in proofs)
    for proof in proofs:
        _check_plan(variant, subject, proof)


UNSAID_BYTES = {
    "axk1": "an optional vector",
    "blt": "the patcher is a model of its own",
    "deepseek_v4": "a table of token ids in int64",
    "inkling2_text": "queries over as many blocks as there are before",
    "longcat_flash": "matrices of experts that give back what they get, which a file need not hold",
    "phi4_multimodal": "the other modalities' towers",
    "qwen4_exp_text": "a table whose sizes are primes",
}
"""What a config alone does not say, by spec; `tpspec plan` says so in words."""
OTHER_WIRE = {
    "blt": "fewer patches than bytes",
    "cpmant": "the prompt gets tokens of its own",
    "mllama": "layers over an image run here",
    "qwen4_exp_text": "a table is looked up for each n-gram",
}
"""Where a pass does not run every module once for each token."""
OTHER_CACHES = {
    "deepseek_v4": "transformers keeps the tokens that are not compressed yet as well",
    "falcon": "transformers keeps the KV heads once for each query head",
    "gpt_neo": "transformers keeps what lies before the window",
    "mllama": "keys and values of the image",
    "recurrent_gemma": "transformers keeps the states in the modules",
}


def _check_plan(variant: Variant, subject: Subject, proof: Proof) -> None:
    """What is planned from the config alone is what was written, sent and kept."""
    name, tp, (batch, length) = variant.spec_name, proof.tp, subject.ids.shape
    alone = resolve(variant.spec, {**subject.resolution.config, "dtype": "float32"})
    if name not in UNSAID_BYTES:
        assert inventory(alone).at(tp).weights().ranks == proof.rank_bytes
    steps = range(length - DECODE_STEPS, length + 1)
    read = length if keeps(variant.spec.decode) else sum(steps)
    given: Counter[str] = Counter()
    for site in implied_sites(alone, tp):
        if site.kind in COLLECTIVES:
            given[COLLECTIVES[site.kind]] += site.payload(4) * site.runs * batch * read
    if name not in OTHER_WIRE:
        assert +proof.given == given
    elements = cache_size(variant.spec, alone.config, tp)
    # A window's own token is not kept: the next one brings its own.
    windowed = sum(min(length, window - 1) * each for window, each in elements.windows.items())
    kept = batch * (elements.elements_per_sequence + length * elements.per_token + windowed)
    if name not in OTHER_CACHES and keeps(variant.spec.decode):
        assert proof.kept == kept


@pytest.mark.parametrize(
    ("name", "changes", "all_reduces"),
    [
        ("llama", {}, lambda layers: 2 * layers + 1),
        ("gpt_neox", {}, lambda layers: layers + 1),
        ("gpt_neox", {"use_parallel_residual": False}, lambda layers: 2 * layers + 1),
        ("falcon", {}, lambda layers: layers + 1),
        ("olmo2", {}, lambda layers: 4 * layers + 1),
        ("mixtral", {}, lambda layers: 2 * layers + 1),
    ],
)
def test_the_collectives_are_those_that_the_design_counts(
    name: str, changes: dict[str, Any], all_reduces: Callable[[int], int]
) -> None:
    with tiny_subject(spec_named(name), changes=changes) as subject:
        layers = len(subject.resolution.ranges["layer"])
        proof = prove(subject, 2)
    assert proof.holds
    assert proof.counted == {"all_reduce": all_reduces(layers), "all_gather": 1}


def test_a_real_checkpoint_is_proved_as_it_is() -> None:
    subject = checkpoint_subject(STORIES, spec_named("llama"))
    assert [prove(subject, tp).failure for tp in (1, 2, 4)] == ["", "", ""]


def proof_of(folder: Path, text: str) -> Proof:
    """The proof at tp 2 of a spec that is written down first."""
    path = folder / "wrong.yaml"
    path.write_text(text)
    with tiny_subject(spec_from_file(path), path) as subject:
        return prove(subject, 2)


def test_a_failure_names_the_first_module_that_differs(tmp_path: Path) -> None:
    proof = proof_of(
        tmp_path,
        "spec: 1\narchitecture: wrong\nmodel_types: [qwen3]\nextends: qwen3\nmodules:\n"
        "  model.layers.{layer}.self_attn.o_proj: {row: q, reduce_at: model.norm}\n",
    )
    assert not proof.holds
    assert "the first module that differs is model.layers.0.self_attn.o_proj" in proof.failure


def test_a_model_that_rounds_much_may_be_off_as_far_as_rounding_moves_it() -> None:
    changes = {"vocab_size": 103, "num_hidden_layers": 3, "head_dim": 24, "num_experts_per_tok": 3}
    with tiny_subject(spec_named("minimax"), changes=changes) as subject:
        proof = prove(subject, 4)
        assert proof.failure == ""
        assert proof.error < proof.bound <= 1e-4
        assert 2.5e-6 < subject.rounding < 1e-4
    with tiny_subject(spec_named("llama")) as subject:
        assert prove(subject, 4).bound == 1e-5
        assert 1e-8 < subject.rounding < 2.5e-6


def test_a_failure_of_the_model_s_code_names_the_module(tmp_path: Path) -> None:
    proof = proof_of(
        tmp_path,
        "spec: 1\narchitecture: wrong\nmodel_types: [bloom]\nextends: bloom\n"
        "runtime:\n  attributes:\n    h.{layer}.self_attention: {num_heads: num_attention_heads}\n",
    )
    assert "the forward pass fails at transformer.h.0.self_attention" in proof.failure


def test_a_head_that_the_spec_takes_for_an_embedding_is_named(tmp_path: Path) -> None:
    proof = proof_of(
        tmp_path,
        "spec: 1\narchitecture: wrong\nmodel_types: [llama]\nextends: llama\nmodules:\n"
        "  lm_head: {vocab: vocab}\n",
    )
    assert "the spec says that lm_head is an embedding; in the model it is a head" in proof.failure
    assert "a head says `tied_to`, or `head: true`" in proof.failure


def test_a_vocabulary_with_rows_that_are_no_tokens_says_how_many_it_has(tmp_path: Path) -> None:
    proof = proof_of(
        tmp_path,
        "spec: 1\narchitecture: wrong\nmodel_types: [inkling2_text]\nextends: inkling2_text\n"
        "axes:\n  vocab: {units: vocab_size, real: null}\n",
    )
    assert proof.error < 1e-5  # the model itself drops them from logits that are gathered
    assert "generation chooses among 102 tokens, and the model among 99" in proof.failure


def test_a_proof_says_which_matrices_are_whole_on_every_rank(tmp_path: Path) -> None:
    path = tmp_path / "whole.yaml"
    path.write_text(
        "spec: 1\narchitecture: whole\nmodel_types: [llama]\nextends: llama\nmodules:\n"
        "  model.layers.{layer}.mlp.{gate_proj,up_proj}: replicated\n"
        "  model.layers.{layer}.mlp.down_proj: replicated\n"
    )
    result = CliRunner().invoke(app, ["prove", str(path), "--tp", "2"])
    assert result.exit_code == 0, result.output
    text = result.output
    matrices = ", ".join(f"model.layers.{{layer}}.mlp.{name}_proj" for name in ("down", "gate", "up"))
    said = re.findall(r"^note: (\d+)% of the weights are whole on every rank: (.*)$", text, re.MULTILINE)
    assert [names for _, names in said] == [matrices]
    assert "note:" not in CliRunner().invoke(app, ["prove", "llama", "--tp", "2"]).output


def test_a_proof_as_json_counts_what_the_table_counts() -> None:
    result = CliRunner().invoke(app, ["prove", "llama", "--tp", "2", "--json"])
    (proof,) = json.loads(result.stdout)["proofs"]
    assert (proof["holds"], proof["counted"]) == (True, {"all_reduce": 5, "all_gather": 1})


def test_a_model_type_that_nothing_registers_asks_for_its_code(tmp_path: Path) -> None:
    path = tmp_path / "plum.yaml"
    path.write_text("spec: 1\narchitecture: plum\nmodel_types: [plum]\nextends: llama\ntiny: {}\n")
    with pytest.raises(TpspecError, match=r"no model type 'plum'\n  → does --code FILE register it\?"):
        tiny_subject(spec_from_file(path), path).__enter__()


def test_a_checkpoint_of_a_type_that_nothing_registers_asks_for_its_code(tmp_path: Path) -> None:
    copytree(STORIES, tmp_path / "plum")
    config = tmp_path / "plum" / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"plum"'))
    with pytest.raises(TpspecError, match=r"no model type 'plum'\n  → does --code FILE register it\?"):
        checkpoint_subject(tmp_path / "plum", spec_named("llama"))


def test_a_module_that_the_tiny_model_lacks_is_a_question_to_the_spec(tmp_path: Path) -> None:
    path = tmp_path / "more.yaml"
    path.write_text(
        "spec: 1\narchitecture: more\nmodel_types: [llama]\nextends: llama\nmodules:\n"
        "  model.layers.{layer}.surplus: replicated\n"
    )
    with pytest.raises(TpspecError, match="does the spec name what transformers saves") as refused:
        tiny_subject(spec_from_file(path), path).__enter__()
    assert "config.json its own" not in str(refused.value)


@pytest.mark.parametrize("name", ["llama", "granitemoe", "gptj"])
def test_prefill_and_decoding_are_both_compared_and_parts_of_sums_are_not(name: str) -> None:
    """Experts give a part of a sum that is reduced around them; GPT-J's attention, what the MLP's takes."""
    with tiny_subject(spec_named(name)) as subject:
        assert [tuple(logits.shape[:2]) for logits in subject.reference.logits] == [(2, 11), *[(2, 1)] * 8]
        wrong = [*subject.reference.logits[:-1], subject.reference.logits[-1] + 1]
        other = replace(subject, reference=replace(subject.reference, logits=wrong))
        proof = prove(other, 2)
    assert "the fault is in decoding" in proof.failure
