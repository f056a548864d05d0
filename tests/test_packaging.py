"""What is installed: one import package, from a wheel that an sdist builds just as well."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: `direct/` holds a wheel built from the tree, `from-sdist/` an sdist and its wheel."""
    folder = tmp_path_factory.mktemp("dist")
    tree = folder / "tree"
    unwanted = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=unwanted)
    build(tree, folder / "direct", "--wheel")
    build(tree, folder / "from-sdist")
    return folder


def build(tree: Path, output: Path, *options: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(output), str(tree)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(params=["direct", "from-sdist"])
def wheel(dist: Path, request: pytest.FixtureRequest) -> Path:
    (path,) = (dist / request.param).glob("*.whl")
    return path


def names(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_only_top_level_name_is_tpspec(wheel: Path):
    top = {PurePosixPath(name).parts[0] for name in names(wheel)}
    assert {name for name in top if not name.endswith(".dist-info")} == {"tpspec"}


def test_a_wheel_holds_every_module_and_spec_of_the_four_folders(wheel: Path):
    package = ROOT / "tpspec"
    folders = [package, *(package / link for link in ("converters", "runtime", "specs"))]
    expected = {
        (Path("tpspec") / path.relative_to(package)).as_posix()
        for folder in folders
        for suffix in ("py", "yaml", "json", "typed", "css", "js")
        for path in folder.rglob(f"*.{suffix}")
    }
    assert {"tpspec/py.typed", "tpspec/specs/llama.yaml", "tpspec/converters/__init__.py"} <= expected
    assert {name for name in names(wheel) if ".dist-info/" not in name} == expected


def test_the_sdist_holds_files_not_links_and_the_licence(dist: Path):
    (path,) = (dist / "from-sdist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = {PurePosixPath(*PurePosixPath(m.name).parts[1:]).as_posix(): m for m in archive}
    assert {"LICENSE", "README.md", "tpspec/specs/llama.yaml", "tpspec/runtime/__init__.py"} <= set(members)
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]


def test_an_installed_wheel_runs_and_finds_its_specs(wheel: Path, tmp_path: Path):
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True)

    def python(*arguments: str) -> str:
        env = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        ).stdout

    assert python("-c", "import tpspec; print(tpspec.__file__)").startswith(str(site))
    assert "validate" in python("-m", "tpspec", "--help")
    assert "llama" in python("-m", "tpspec", "specs")
