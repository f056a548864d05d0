"""Between text and tokens: prompts to ids, and ids to text as they come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tpspec.errors import TpspecError

TOKENIZER_FILES = ("tokenizer*", "*.model", "vocab*", "*.tiktoken", "tekken.json")
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer puts for bytes that are no character, perhaps because the rest is still to come."""


class Tokenizer:
    """A directory's tokenizer. Raises TpspecError where it has none that transformers can load."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            self.inner: Any = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
        except Exception as error:  # noqa: BLE001 - it raises many kinds, KeyError among them
            raise TpspecError(
                f"{directory}: {_problem(directory, error)}",
                remedy="copy the tokenizer's files of the original checkpoint into it; token ids need none",
            ) from None

    def encode(self, prompt: str, *, chat: bool) -> tuple[int, ...]:
        """A prompt's token ids, with the tokens that the model wants at the start; at least one.

        With `chat`, the prompt is a user's message in the chat template. Raises TpspecError where there is no
        template, or no token.
        """
        if chat and not self.inner.chat_template:
            raise TpspecError(
                f"{self.directory}: its tokenizer has no chat template",
                remedy="give it the whole text, without chat",
            )
        if chat:
            message = [{"role": "user", "content": prompt}]
            text = self.inner.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
            ids = self.inner(text, add_special_tokens=False, verbose=False)["input_ids"]
        else:
            ids = self.inner(prompt, verbose=False)["input_ids"]  # how long it may be is the plan's to say
        if not ids and self.inner.bos_token_id is not None:
            ids = [self.inner.bos_token_id]
        if not ids:
            raise TpspecError(
                f"the prompt {prompt!r} has no tokens, and the tokenizer none to start a text with"
            )
        return tuple(ids)

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special ones left out."""
        text: str = self.inner.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def _problem(directory: Path, error: Exception) -> str:
    """Why a directory's tokenizer cannot be loaded: there is none, or what transformers says first."""
    if not any(path for pattern in TOKENIZER_FILES for path in directory.glob(pattern)):
        return "there is no tokenizer in it, neither tokenizer.json nor another kind"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(" :")
    return f"its tokenizer cannot be loaded: {reason}"


class Continuation:
    """The text after a prompt, token by token, up to the first of the strings `stop`.

    What a token adds is the difference that it makes to the text before it, for the same token may begin
    with a space or not. A character whose bytes come in several tokens is held back until it is whole,
    and so is what may be the beginning of a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: tuple[str, ...]) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        self.stopped = False
        self._ids = list(prompt)
        self._context = 0
        self._shown = len(prompt)
        self._held = ""

    def add(self, token: int) -> str:
        """The text that can be shown now that this token is there too."""
        self._ids.append(token)
        new = self._unshown()
        return "" if new.endswith(UNFINISHED) else self._show(new)

    def end(self) -> str:
        """What was held back until now, when no token follows."""
        rest = self._show(self._unshown()) + self._held
        self._held = ""
        return rest

    def _unshown(self) -> str:
        before = self.tokenizer.decode(self._ids[self._context : self._shown])
        return self.tokenizer.decode(self._ids[self._context :])[len(before) :]

    def _show(self, new: str) -> str:
        if not new:
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        text = self._held + new
        found = [place for place in map(text.find, self.stop) if place >= 0]
        self.stopped = bool(found)
        end = min(found, default=len(text) - self._may_stop(text))
        self._held = "" if found else text[end:]
        return text[:end]

    def _may_stop(self, text: str) -> int:
        """How many characters at the end of a text are the beginning of a stop string."""
        lengths = (n for stop in self.stop for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(lengths, default=0)
