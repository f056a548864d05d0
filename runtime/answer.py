"""What follows one prompt, while it is being generated."""

from __future__ import annotations

from collections.abc import Collection

from tpspec.runtime.request import Completion, Finish
from tpspec.runtime.text import Continuation


class Answer:
    """The tokens so far, and why they ended; rank 0 has their text as well."""

    def __init__(self, room: int, eos: Collection[int], continuation: Continuation | None) -> None:
        self.room = room
        self.eos = eos
        self.continuation = continuation
        self.tokens: list[int] = []
        self.text = ""
        self.finish: Finish | None = None

    def add(self, token: int) -> str:
        """Takes the next token; returns the text that can be shown now."""
        self.tokens.append(token)
        text = ""
        if token in self.eos:
            self.finish = "eos"
        elif self.continuation:
            text = self.continuation.add(token)
            if self.continuation.stopped:
                self.finish = "stop"
        if not self.finish and len(self.tokens) == self.room:
            self.finish = "length"
        if self.finish and self.continuation:
            text += self.continuation.end()
        self.text += text
        return text

    def completion(self, prompt_tokens: int, text: str) -> Completion:
        """The answer as it is handed out, with rank 0's text."""
        assert self.finish is not None
        return Completion(prompt_tokens, tuple(self.tokens), text, self.finish)
