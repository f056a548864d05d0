"""Loading specs: complaints with file:line, inheritance, the pairing law."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from tpspec.errors import TpspecError
from tpspec.language import registry
from tpspec.language.spec import Spec

GOOD = """\
spec: 1
architecture: mine
model_types: [mine]
ranges: {layer: num_hidden_layers}
axes:
  q: {units: num_attention_heads, width: head_dim}
  ffn: {units: intermediate_size}
modules:
  layers.{layer}.{q,k}_proj: {qkv-head: q}
  layers.{layer}.o_proj: {row: q}
  layers.{layer}.up: {column: ffn}
  layers.{layer}.down: {row: ffn}
  norm: replicated
"""


def load(folder: Path, text: str, name: str = "mine") -> Spec:
    path = folder / f"{name}.yaml"
    path.write_text(dedent(text))
    return registry.spec_from_file(path)


def test_alternatives_become_rules_of_their_own(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD)
    assert [p.template for p in spec.rules][:2] == ["layers.{layer}.q_proj", "layers.{layer}.k_proj"]
    assert spec.rules[1].place == f"{tmp_path}/mine.yaml:9"


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("{row: q}", "{rwo: q}", "no key 'rwo' here; the keys are column, row, qkv-head", 10),
        ("{row: q}", "{row: q, gahter: true}", "did you mean 'gather'", 10),
        ("{row: q}", "{row: q, column: q}", "has column and row", 10),
        ("{row: q}", "{bias: true}", "a rule has one tag", 10),
        ("{row: q}", "{row: h}", "no axis 'h'; there are ffn, q", 10),
        ("{row: q}", "column", "'column' needs what it cuts", 10),
        ("{row: q}", "{replicated: true, blocks: 2}", "'blocks' does not go with 'replicated'", 10),
        ("{row: q}", "{column: q, reduce_at: x}", "'reduce_at' does not go with 'column'", 10),
        ("{row: q}", "{row: q, reduce_at: x, reduce_before: y}", "two places for one sum", 10),
        ("{row: q}", "{row: q, dims: [expert, out]}", "does not name 'in'", 10),
        ("{row: q}", "{row: q, dims: [out, in, 'import os']}", "not an expression", 10),
        ("{row: q}", "{row: q, width: [1, 2]}", "2 widths for 1 parts", 10),
        ("{row: q}", "{qkv-head: [q, {axis: replicated}]}", "a replicated part needs its width", 10),
        ("{row: q}", "{row: q, when: 'import os'}", "not an expression", 10),
        ("{row: q}", "{row: q, tied_to: nrom}", "did you mean 'norm'", 10),
        ("{row: q}", "{row: q, norm: {kind: rmz}}", "'rms' or 'layer'", 10),
        ("layers.{layer}.o_proj", "layers.{leyer}.o_proj", "no range 'leyer'", 10),
        ("layers.{layer}.o_proj", "layers.{layer.o_proj", "unbalanced braces", 10),
        ("{row: q}", "{row: q, reduce_at: 'a.{b'}", "unbalanced braces", 10),
        ("{row: q}", "{row: q, width: local(q)}", "local() is for `cache` and `runtime`", 10),
        ("units: num_attention_heads", "units: local(q)", "local() is for `cache` and `runtime`", 6),
        ("{layer: num_hidden_layers}", "{layer: []}", "at least 1 item", 4),
        ("{layer: num_hidden_layers}", "{layer: [1, 2, 3]}", "at most 2 items", 4),
        ("{layer: num_hidden_layers}", "{layer: layer}", "a range cannot depend on a range", 4),
        ("spec: 1", "spec: 2", "Input should be 1", 1),
        ("model_types:", "modeltypes:", "did you mean 'model_types'", 3),
        ("width: head_dim", "widht: head_dim", "the keys are units, width", 6),
        ("architecture: mine", "# nothing", "'architecture' is missing", 1),
    ],
)
def test_mistakes_name_file_line_and_keys(
    tmp_path: Path, old: str, new: str, message: str, line: int
) -> None:
    with pytest.raises(TpspecError) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert message in str(caught.value)
    assert f"mine.yaml:{line}" in str(caught.value)


@pytest.mark.parametrize("kind", ["pipe", "zeros", "large", "folder"])
def test_a_spec_is_a_plain_file_of_a_spec_s_size(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mine.yaml"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "zeros":
            path.symlink_to("/dev/zero")
        case "large":
            path.write_bytes(b"#" * 300_000)
        case "folder":
            path.mkdir()
    with pytest.raises(TpspecError, match=r"mine\.yaml"):
        registry.spec_from_file(path)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(TpspecError) as caught:
        load(tmp_path, GOOD.replace("{row: q}", "{rwo: q}").replace("{row: ffn}", "{roww: ffn}"))
    assert {f.place.rpartition(":")[2] for f in caught.value.findings} >= {"10", "12"}


def test_a_row_whose_producer_is_replicated_names_both(tmp_path: Path) -> None:
    with pytest.raises(TpspecError) as caught:
        load(tmp_path, GOOD.replace("{column: ffn}", "replicated"))
    (finding,) = caught.value.findings
    assert finding.subject == "layers.{layer}.down"
    assert "'ffn'" in finding.problem
    assert "up is replicated" in finding.problem


def test_what_a_token_uses_is_part_of_a_range(tmp_path: Path) -> None:
    with pytest.raises(TpspecError, match="active: there is no range 'experts'; there are layer"):
        load(tmp_path, GOOD.replace("modules:", "active: {experts: 2}\nmodules:"))


def test_definitions_may_refine_the_config_but_not_go_in_circles(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD + "let: {head_dim: head_dim or 8}\n")
    with pytest.raises(TpspecError, match=r"let\.a: is defined by itself"):
        load(tmp_path, GOOD + "let: {a: b + 1, b: c, c: a}\n")


def test_a_child_changes_takes_away_and_adds(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    child = load(
        tmp_path,
        """\
        spec: 1
        architecture: child
        extends: mine
        axes: {ffn: {units: 4 * hidden_size}}
        modules:
          layers.{layer}.k_proj: null
          layers.{layer}.o_proj: {row: q, bias: true}
          head: replicated
        """,
        "child",
    )
    templates = {p.template: p for p in child.rules}
    assert "layers.{layer}.k_proj" not in templates
    assert "layers.{layer}.q_proj" in templates
    assert "head" in templates
    assert templates["layers.{layer}.o_proj"].place.endswith("child.yaml:7")
    assert str(child.axes["ffn"].units) == "4 * hidden_size"
    assert child.model_types == ()


def test_names_in_memory_add_up_and_the_spec_s_own_come_first(tmp_path: Path) -> None:
    load(tmp_path, GOOD + "memory: [{rename: up, to: fc1}, {rename: down, to: fc2}]\n")
    child = load(
        tmp_path, "spec: 1\narchitecture: a\nextends: mine\nmemory: [{rename: down, to: out}]\n", "a"
    )
    assert [(entry.rename, entry.to) for entry in child.memory] == [("down", "out"), ("up", "fc1")]


def test_alternatives_are_renamed_one_for_one(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD + "memory: [{rename: '{up,down}', to: '{fc1,fc2}'}]\n")
    assert spec.memory[0].pairs == (("up", "fc1"), ("down", "fc2"))
    with pytest.raises(TpspecError, match="2 names are renamed to 1"):
        load(tmp_path, GOOD + "memory: [{rename: '{up,down}', to: fc}]\n")


def test_inheritance_in_a_circle_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("spec: 1\narchitecture: a\nextends: b\n")
    (tmp_path / "b.yaml").write_text("spec: 1\narchitecture: b\nextends: a\n")
    with pytest.raises(TpspecError, match=r"in a circle: .*a\.yaml → .*b\.yaml → .*a\.yaml"):
        registry.spec_from_file(tmp_path / "a.yaml")


def test_an_unknown_base_suggests_one(tmp_path: Path) -> None:
    with pytest.raises(TpspecError, match="did you mean 'llama'"):
        load(tmp_path, "spec: 1\narchitecture: a\nextends: lama\n", "a")


@pytest.mark.parametrize("base", ["../../etc/passwd", "/etc/passwd", "a/b"])
def test_a_base_is_a_name_not_a_path(tmp_path: Path, base: str) -> None:
    with pytest.raises(TpspecError, match="is not a spec's name"):
        load(tmp_path, f"spec: 1\narchitecture: a\nextends: {base}\n", "a")


def test_user_specs_stand_before_built_in_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = GOOD.replace("model_types: [mine]", "model_types: [llama]")
    (tmp_path / "mine.yaml").write_text(text)
    monkeypatch.setenv("TPSPEC_PATH", str(tmp_path))
    assert registry.spec_for(["llama"]).name == "mine"
    assert "mine" in registry.spec_names()
    monkeypatch.setenv("TPSPEC_PATH", str(tmp_path / "absent"))
    with pytest.raises(TpspecError, match="there is no"):
        registry.spec_for(["llama"])


def test_an_unknown_model_type_suggests_near_ones() -> None:
    with pytest.raises(TpspecError, match="no spec knows model_type 'lama'; near it: llama"):
        registry.spec_for(["lama"])


def test_the_index_is_up_to_date() -> None:
    assert registry.built_in_index() == registry.make_index()
