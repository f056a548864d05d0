"""What goes wrong, as data: one finding per fault, one exception that carries them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
        line = f"{self.subject}: {self.problem}" if self.subject else self.problem
        return f"{line} ({self.place})" if self.place else line


class TpspecError(Exception):
    """The input is at fault. The command line prints it without a traceback and exits with 1."""

    def __init__(self, message: str, findings: Iterable[Finding] = (), remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.findings = tuple(findings)
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [self.message, *(f"  {finding}" for finding in self.findings)]
        remedies = dict.fromkeys(filter(None, (*(f.remedy for f in self.findings), self.remedy)))
        return "\n".join((*lines, *(f"  → {remedy}" for remedy in remedies)))
