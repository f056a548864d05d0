"""Generation: transformers' own text, at every tp, alone or side by side, as it comes."""

from __future__ import annotations

import doctest
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from stories import ONCE, PROMPTS, STORIES, continued, loaded, sharded
from tiny_ranks import tiny
from transformers import AutoTokenizer

import tpspec.runtime
from tpspec.checkpoint import open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.sources import open_source
from tpspec.errors import TpspecError
from tpspec.resolve import resolve_layout
from tpspec.runtime import load
from tpspec.runtime.rank_check import attach_rank_check
from tpspec.runtime.request import Completion, Piece
from tpspec.runtime.text import Continuation, Tokenizer

SIZES = (1, 2, 4)


def tokens_of(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [completion.tokens for completion in completions]


@pytest.mark.parametrize("tp", SIZES)
def test_greedy_text_is_transformers_own_over_200_tokens(tp: int):
    (completion,) = loaded(tp).generate(ONCE, max_new_tokens=200)
    assert completion.tokens == continued(ONCE, 200)
    assert len(completion.tokens) == 200
    assert (completion.prompt_tokens, completion.finish) == (5, "length")
    assert completion.text.startswith(", there was a little girl named Lily.")


@pytest.mark.parametrize("tp", SIZES)
def test_prompts_of_unequal_length_give_side_by_side_what_each_gives_alone(tp: int):
    together = loaded(tp).generate(PROMPTS, max_new_tokens=200)
    assert tokens_of(together) == [continued(prompt, 200) for prompt in PROMPTS]
    assert {completion.finish for completion in together} == {"length", "eos"}


def test_batches_smaller_than_the_prompts_are_many_give_the_same():
    together = loaded(2).generate(PROMPTS, max_new_tokens=30)
    assert loaded(2).generate(PROMPTS, max_new_tokens=30, batch_size=3) == together


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 20},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.5, "top_k": 100, "top_p": 0.8},
        {"temperature": 3.0, "top_p": 0.99},
    ],
    ids=str,
)
def test_the_same_seed_gives_the_same_sample_at_every_tp(how: dict[str, float]):
    samples = [loaded(tp).generate(PROMPTS, max_new_tokens=40, seed=5, **how) for tp in SIZES]
    assert samples[0] == samples[1] == samples[2]
    other = loaded(1).generate(PROMPTS, max_new_tokens=40, seed=6, **how)
    assert tokens_of(other) != tokens_of(samples[0])
    twice = loaded(1).generate([ONCE, ONCE], max_new_tokens=40, seed=5, **how)
    assert twice[0].tokens == samples[0][0].tokens != twice[1].tokens


def test_text_comes_in_pieces_that_make_the_whole():
    pieces: list[Piece] = []
    completions = loaded(2).generate(PROMPTS, max_new_tokens=50, on_piece=pieces.append)
    for number, completion in enumerate(completions):
        mine = [piece for piece in pieces if piece.sequence == number]
        assert "".join(piece.text for piece in mine) == completion.text
        assert [piece.last for piece in mine] == [False] * (len(completion.tokens) - 1) + [True]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_text_ends_before_the_first_stop_string(tp: int):
    whole = loaded(tp).generate(ONCE, max_new_tokens=30)[0].text
    for stop in ("She loved", "ed to pl", "Lily", "y.", ","):
        pieces: list[Piece] = []
        (completion,) = loaded(tp).generate(
            ONCE, max_new_tokens=30, stop=["no such words", stop], on_piece=pieces.append
        )
        assert completion.finish == "stop"
        assert completion.text == whole[: whole.index(stop)]
        assert "".join(piece.text for piece in pieces) == completion.text


def test_what_might_have_been_a_stop_string_is_shown_at_the_end():
    (whole,) = loaded(2).generate(ONCE, max_new_tokens=11)
    assert loaded(2).generate(ONCE, max_new_tokens=11, stop=["Lily. Then"])[0] == whole


@pytest.mark.parametrize("text", ["Ünï ☃ 日本語", "a 🦊🦊 b", "ab", "…\n\n\tx"])
@pytest.mark.parametrize("prompt", ["", "日", "word "])
def test_characters_of_several_tokens_are_shown_whole(text: str, prompt: str):
    tokenizer = Tokenizer(STORIES)
    before, ids = tokenizer.encode(prompt, chat=False), tokenizer.encode(prompt + text, chat=False)
    after = ids[len(before) :] if ids[: len(before)] == before else tokenizer.encode(text, chat=False)[1:]
    continuation = Continuation(tokenizer, before, ())
    pieces = [continuation.add(token) for token in after]
    assert "\ufffd" not in "".join(pieces)
    whole = tokenizer.decode([*before, *after])
    assert tokenizer.decode(list(before)) + "".join(pieces) + continuation.end() == whole


def test_bytes_that_are_no_character_are_shown_at_the_end():
    tokenizer = Tokenizer(STORIES)
    (first, *_) = tokenizer.encode("☃", chat=False)[2:]  # the first of its three bytes
    continuation = Continuation(tokenizer, (1,), ())
    assert (continuation.add(first), continuation.end()) == ("", "\ufffd")


def test_prompts_may_be_token_ids_and_then_need_no_tokenizer(tmp_path: Path):
    ids = tuple(AutoTokenizer.from_pretrained(STORIES)(ONCE)["input_ids"])
    bare = tmp_path / "bare"
    shutil.copytree(sharded(2), bare, ignore=shutil.ignore_patterns("tokenizer*"))
    model = load(bare, threads=True, verify=False)
    (completion,) = model.generate([ids], max_new_tokens=20)
    assert (completion.tokens, completion.text) == (continued(ONCE, 20), "")
    with pytest.raises(TpspecError) as raised:
        model.generate(ONCE)
    assert str(raised.value).splitlines() == [
        f"{bare}: there is no tokenizer in it, neither tokenizer.json nor another kind",
        "  → copy the tokenizer's files of the original checkpoint into it; token ids need none",
    ]
    (bare / "tokenizer.json").write_text("{")
    with pytest.raises(TpspecError, match=r"its tokenizer cannot be loaded: .+") as raised:
        model.generate(ONCE)
    assert len(str(raised.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (
            (1, 99999),
            ["prompt 1: 1 is neither a text nor a tuple of token ids", "prompt 2: 99999 is neither"],
        ),
        ([(1, 2.5)], ["prompt 1: (1, 2.5) is neither a text nor a tuple of token ids"]),
        ([None, ONCE], ["prompt 1: None is neither a text nor a tuple of token ids"]),
        ([(1, 99999)], ["prompt 1 (2 tokens): has the token 99999, the model's vocabulary ends at 511"]),
        ([(-1,)], ["prompt 1 (1 tokens): has the token -1, the model's vocabulary ends at 511"]),
        ([], ["there is no prompt"]),
    ],
)
def test_what_is_no_prompt_is_said(prompts: Any, words: list[str]):
    with pytest.raises(TpspecError) as raised:
        loaded(2).generate(prompts)
    assert all(word in str(raised.value) for word in words)


def test_one_stop_string_may_stand_alone():
    (completion,) = loaded(2).generate(ONCE, max_new_tokens=30, stop="Lily")
    assert (completion.finish, completion.text) == ("stop", ", there was a little girl named ")


def test_a_prompt_that_is_too_long_is_told_once_and_by_us(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(TpspecError, match="the model 512 positions"):
        loaded(2).generate("word " * 600)
    assert capfd.readouterr().err == ""


OWN_CODE = """
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

class Config(LlamaConfig):
    model_type = "of_my_own"

class Model(LlamaForCausalLM):
    config_class = Config

AutoConfig.register("of_my_own", Config)
AutoModelForCausalLM.register(Config, Model)
"""


def test_code_of_the_user_s_own_is_registered_once_for_all_ranks(tmp_path: Path):
    source = shutil.copytree(STORIES, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "model_type": "of_my_own"}))
    code, spec = tmp_path / "own.py", tmp_path / "own.yaml"
    code.write_text(OWN_CODE)
    spec.write_text("spec: 1\narchitecture: own\nmodel_types: [of_my_own]\nextends: llama\n")
    convert(open_source(str(source)), tmp_path / "out", resolve_layout(open_checkpoint(source), 2, spec))
    with pytest.raises(TpspecError, match="transformers has no code for 'of_my_own' models"):
        load(tmp_path / "out", threads=True, spec=spec)
    for _ in range(2):
        model = load(tmp_path / "out", threads=True, spec=spec, code=code)
    assert type(model.ranks[1].model).__name__ == "Model"
    assert model.generate(ONCE, max_new_tokens=20)[0].tokens == continued(ONCE, 20)


def test_an_empty_prompt_starts_a_text():
    (completion,) = loaded(2).generate("", max_new_tokens=5)
    assert (completion.prompt_tokens, completion.tokens) == (1, continued("", 5))


def test_a_prompt_may_fill_the_models_positions_but_not_exceed_them():
    """With 512 positions, after 511 tokens one more can be read, and after it a last one chosen."""
    model = loaded(2)
    assert len(model.generate([(5,) * 511])[0].tokens) <= 2
    together = model.generate([(5,) * 511, (1, 403, 407, 261, 378)], max_new_tokens=100)
    assert together[1].tokens == continued(ONCE, 100)
    with pytest.raises(TpspecError) as raised:
        model.generate([(5,) * 512, (5,) * 600, (5, 700), ()])
    assert [str(finding) for finding in raised.value.findings] == [
        "prompt 2 (600 tokens): has 600 tokens, the model 512 positions",
        "prompt 3 (2 tokens): has the token 700, the model's vocabulary ends at 511",
        "prompt 4 (0 tokens): has no tokens",
    ]
    assert model.generate(ONCE, max_new_tokens=5)[0].tokens == continued(ONCE, 5)  # it is as good as before


def test_chat_needs_a_template(tmp_path: Path):
    with pytest.raises(TpspecError, match="has no chat template"):
        loaded(2).generate("Hello", chat=True)
    out = shutil.copytree(sharded(2), tmp_path / "chat")
    template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
    config = json.loads((out / "tokenizer_config.json").read_text())
    (out / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    (completion,) = load(out, threads=True, verify=False).generate(ONCE, chat=True, max_new_tokens=20)
    assert completion.tokens == continued(ONCE, 20)


def test_eos_may_be_several_tokens_and_stand_in_either_config(tmp_path: Path):
    out = shutil.copytree(sharded(1), tmp_path / "out")
    fifth = continued(ONCE, 5)[4]
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, fifth]}))
    (completion,) = load(out, threads=True, verify=False).generate(ONCE, max_new_tokens=20)
    assert (completion.finish, completion.tokens) == ("eos", continued(ONCE, 5))
    (out / "generation_config.json").unlink()
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "eos_token_id": fifth}))
    assert load(out, threads=True, verify=False).generate(ONCE, max_new_tokens=20) == [completion]


def test_a_model_whose_config_knows_no_end_goes_on(tmp_path: Path):
    model = tiny(tmp_path, "cpmant")
    ids = torch.tensor([[5, 6, 7]])
    whole = model.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
    (model.out(2) / "generation_config.json").unlink(missing_ok=True)
    (completion,) = load(model.out(2), threads=True, verify=False).generate([(5, 6, 7)], max_new_tokens=4)
    assert (completion.finish, list(completion.tokens)) == ("length", whole[0, 3:].tolist())


def test_the_example_of_the_docstring_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("stories-tp2").symlink_to(sharded(2))
    result = doctest.testmod(tpspec.runtime)
    assert (result.attempted, result.failed) == (2, 0)


def test_an_edited_config_is_refused_unless_it_is_not_to_be_verified(tmp_path: Path):
    out = shutil.copytree(sharded(2), tmp_path / "out")
    config = (out / "config.json").read_text()
    (out / "config.json").write_text(config.replace("10000.0", "500.0"))
    with pytest.raises(TpspecError, match=r"out was edited\n  config\.json: has") as refused:
        load(out, threads=True)
    assert "--no-verify" in refused.value.remedy
    assert load(out, threads=True, verify=False).generate(ONCE, max_new_tokens=1)[0].tokens


def test_several_ranks_need_torchrun_or_threads():
    with pytest.raises(TpspecError, match=r"has 4 ranks.*\n.*torchrun --nproc-per-node 4"):
        load(sharded(4))
    assert load(sharded(1)).generate(ONCE, max_new_tokens=3)[0].tokens == continued(ONCE, 3)


def test_an_error_on_one_rank_ends_the_others():
    model = load(sharded(4), threads=True)

    def fail(piece: Piece) -> None:
        raise KeyError(piece.text)

    with pytest.raises(KeyError):
        model.generate(ONCE, on_piece=fail)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool")]


def test_a_residual_stream_that_differs_is_found_at_the_layer_where_it_first_does():
    model = load(sharded(4), threads=True)
    for rank in model.ranks:
        attach_rank_check(rank, rank.collectives)
    assert model.generate(ONCE, max_new_tokens=20)[0].tokens == continued(ONCE, 20)

    def nudge(module: torch.nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        del module, args
        return torch.nextafter(output, torch.tensor(100.0))

    for number in (1, 3):
        model.ranks[number].model.model.layers[2].register_forward_hook(nudge)
    with pytest.raises(
        TpspecError, match=r"diverge at model.layers.3: ranks 1, 3 have another input than rank 0"
    ):
        model.generate(ONCE, max_new_tokens=20)
