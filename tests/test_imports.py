"""What imports what: fast commands load little, and the arrows between the folders point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "tests/models/Meta-Llama-3-70B/config.json"
CORE = sorted((ROOT / "tpspec").rglob("*.py"))
CONVERTERS = sorted((ROOT / "converters").rglob("*.py"))
RUNTIME = sorted((ROOT / "runtime").rglob("*.py"))

RUN = """
import sys

before = set(sys.modules)
{code}
tops = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(tops - sys.stdlib_module_names), file=sys.stderr)
"""
COMMAND = """
from tpspec.cli.app import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""


def loads(code: str, *arguments: str) -> set[str]:
    """Top-level modules outside the standard library that the code loads in an interpreter of its own."""
    command = [sys.executable, "-c", RUN.format(code=code), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stderr.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_else():
    assert loads("import tpspec") == {"tpspec"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_loads_click_alone(arguments: list[str]):
    assert loads(COMMAND, *arguments) == {"tpspec", "click"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", str(CONFIG), "--tp", "8"],
        ["plan", str(CONFIG), "--tp", "8"],
        ["specs"],
        ["specs", "llama"],
        ["schema"],
    ],
    ids=lambda arguments: " ".join(Path(word).name for word in arguments),
)
def test_a_fast_command_loads_no_torch(arguments: list[str]):
    heavy = {"torch", "transformers", "safetensors", "numpy", "huggingface_hub", "xxhash"}
    assert not loads(COMMAND, *arguments) & heavy


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Each name that a module imports, and whether lazily: inside a function, or for types alone."""
    yield from _imports(ast.parse(path.read_text(), path), lazily=False)


def _imports(node: ast.AST, *, lazily: bool) -> Iterator[tuple[str, bool]]:
    match node:
        case ast.Import(names=names):
            yield from ((alias.name, lazily) for alias in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield from ((f"{module}.{alias.name}", lazily) for alias in names)
        case ast.ImportFrom():
            raise AssertionError("a relative import")
        case _:
            lazily = lazily or isinstance(node, ast.FunctionDef) or is_for_types(node)
            for child in ast.iter_child_nodes(node):
                yield from _imports(child, lazily=lazily)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def within(name: str, *packages: str) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", CORE, ids=shown)
def test_the_core_imports_neither_converters_nor_runtime_nor_torch(path: Path):
    command = path.parent.name == "cli"
    for name, lazily in imports(path):
        if within(name, "tpspec.converters", "tpspec.runtime", "torch", "transformers"):
            assert command, f"imports {name}"
            assert lazily, f"imports {name} before its command runs"


@pytest.mark.parametrize("path", CONVERTERS, ids=shown)
def test_converters_import_neither_runtime_nor_the_command_line(path: Path):
    assert not [name for name, _ in imports(path) if within(name, "tpspec.runtime", "tpspec.cli")]


@pytest.mark.parametrize("path", RUNTIME, ids=shown)
def test_the_runtime_imports_neither_converters_nor_the_command_line(path: Path):
    proof = path.name == "prove.py"  # it cuts and merges the models that it runs
    forbidden = ("tpspec.cli",) if proof else ("tpspec.cli", "tpspec.converters")
    assert not [name for name, _ in imports(path) if within(name, *forbidden)]


def test_modules_are_named_for_what_they_hold():
    assert not [path for path in (*CORE, *CONVERTERS, *RUNTIME) if path.stem in {"utils", "helpers", "misc"}]
