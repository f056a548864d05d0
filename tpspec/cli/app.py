"""The `tpspec` command: finds commands by name, and turns what goes wrong into an exit status."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

import click

from tpspec import __version__
from tpspec.errors import TpspecError, printable

COMMANDS = {
    "validate": "Which layers break at a tp size, why, and which sizes work.",
    "show": "The shard map: which part of each tensor each rank holds.",
    "plan": "What a tp size buys: cache, tokens, time, and what stops growing.",
    "convert": "Cut a checkpoint into one safetensors file per rank.",
    "verify": "Check a pre-sharded directory against its manifest or its source.",
    "merge": "Put a pre-sharded directory together again, byte for byte.",
    "export": "Write the files that vLLM or SGLang load, one set per rank.",
    "pad": "Write a model with zero heads and columns, so that tp divides it, for any engine.",
    "run": "Generate text with the ranks of a pre-sharded directory.",
    "bench": "How fast a pre-sharded directory runs, and where a step's time goes.",
    "init": "Draft a spec for an architecture that has none.",
    "prove": "Prove a spec: a tiny model, cut, gives the unsharded model's logits.",
    "diff": "A tensor-parallel plan of transformers beside the spec, and what differs costs.",
    "specs": "List the known architectures, or show one spec resolved.",
    "schema": "Print the JSON schema of the spec language, for editors.",
}
"""Command → its line in `tpspec --help`; the command itself is `tpspec.cli.<name>:command`."""


TORCH_PACKAGES = ("torch", "transformers", "safetensors")
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""What torchrun sets in the processes that it starts."""


class LazyGroup(click.Group):
    """Imports a command's module when the command runs, so that `--help` imports click alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"tpspec.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with:  tpspec validate PATH --tp 2,4,8",
)
@click.version_option(__version__, prog_name="tpspec")
def app() -> None:
    """Cut large language models across GPUs, from one readable spec per architecture."""


def main() -> None:
    """Runs the command line. Exit status: 0 fine, 1 bad input, 2 bad usage, 130 interrupted."""
    interrupted = Interrupted()
    signal.signal(signal.SIGINT, interrupted)
    write_what_cannot_be_encoded()
    try:
        status = app.main(standalone_mode=False, color=colour())
    except TpspecError as error:
        print_error(error)
        status = 1
    except (click.exceptions.Abort, KeyboardInterrupt):
        say("interrupted")
        status = 130
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in TORCH_PACKAGES:
            raise
        print_error(TpspecError(f"this command needs {error.name}", remedy="pip install 'tpspec[torch]'"))
        status = 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except SystemExit:  # click's way out when nobody reads its help
        status = 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"{click.style('error:', fg='red', bold=True)} {printable(f'{where}{error.strerror or error}')}")
        status = 1
    except Exception:
        if not interrupted.seen:
            raise
        say("interrupted")  # an import that Ctrl-C broke off fails in ways of its own
        status = 130
    _leave(status if isinstance(status, int) else 0)


def _leave(status: int) -> NoReturn:
    """Ends the process; one of torchrun's at once, for what torch takes down in the end may abort it."""
    if TORCHRUN in os.environ and "torch" in sys.modules:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


class Interrupted:
    """Python's own answer to Ctrl-C, remembered."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)


def print_error(error: TpspecError) -> None:
    """Prints an error to stderr: the message, each finding, then what to do."""
    first, *rest = str(error).splitlines()
    say(f"{click.style('error:', fg='red', bold=True)} {first}")
    for line in rest:
        say(click.style(line, fg="cyan") if line.startswith("  → ") else line)


def say(line: str) -> None:
    """Prints a line to stderr."""
    click.echo(line, err=True, color=colour())


def colour() -> bool | None:
    """No colour where the environment says so (no-color.org); else click decides by the terminal."""
    return False if os.environ.get("NO_COLOR") else None


def write_what_cannot_be_encoded() -> None:
    """Has characters that the terminal's encoding lacks, and bytes of names that are no text, escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
