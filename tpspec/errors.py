"""What goes wrong, as data: one finding per fault, one exception that carries them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_FINDINGS = 8
"""Findings that are listed where one fault may be found everywhere."""
MAX_TEXT = 600
"""Characters printed of a subject or a problem, which may quote a name of any length."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of an input.

    `subject` is what the fault is about (a module with its layer range, a tensor, a file),
    `problem` what is wrong with it, numbers included, `place` the file and line at fault,
    and `remedy` what to do next.
    """

    subject: str
    problem: str
    place: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        texts = self.subject, self.problem, self.place
        subject, problem, place = (clipped(printable(text)) for text in texts)
        line = f"{subject}: {problem}" if subject else problem
        return f"{line} ({place})" if place else line


def first_findings(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The first few findings, and one more that counts the rest."""
    rest = len(findings) - MAX_FINDINGS
    return [*findings[:MAX_FINDINGS], Finding("", f"… and {rest} more")] if rest > 0 else findings


def clipped(text: str) -> str:
    """A text without its middle where it is very long."""
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half]}…{text[-half:]}"


def printable(text: str) -> str:
    """A text with what a terminal would obey or hide escaped, such as names in a file may hold."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class TpspecError(Exception):
    """The input is at fault. The command line prints it without a traceback and exits with 1."""

    def __init__(self, message: str, findings: Iterable[Finding] = (), remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.findings = tuple(findings)
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [clipped(printable(self.message)), *(f"  {finding}" for finding in self.findings)]
        remedies = dict.fromkeys(filter(None, (*(f.remedy for f in self.findings), self.remedy)))
        shown = ("\n".join(map(printable, remedy.split("\n"))) for remedy in remedies)
        return "\n".join((*lines, *(f"  → {remedy}" for remedy in shown)))
