"""What the README shows is what the commands print, and every command is documented with an example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts.readme import DOCUMENTS, rerun
from tpspec.cli.app import COMMANDS, app
from tpspec.language.registry import spec_from_file
from tpspec.language.tags import TAGS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_transcripts_of_a_document_are_what_its_commands_print(path: Path):
    assert rerun(path.read_text()) == path.read_text(), "if that is meant: make readme"


def test_the_spec_that_the_readme_shows_is_one(tmp_path: Path):
    (spec,) = re.findall(r"^```yaml\n([^`]*^spec: 1\n[^`]*)^```$", README, re.MULTILINE)
    (tmp_path / "my-model.yaml").write_text(spec)
    assert spec_from_file(tmp_path / "my-model.yaml").model_types == ("my_model",)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_documented_and_its_help_has_an_example(name: str):
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Example" in result.output
    assert f"tpspec {name} " in result.output
    assert f"`tpspec {name}" in README


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_in_the_table_of_the_readme(tag: str):
    assert re.search(rf"^\| `{tag}\b", README, re.MULTILINE)


def test_every_make_target_that_the_documents_name_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", "docs/adding-an-architecture.md"):
        assert set(re.findall(r"\bmake ([a-z]+)\b`", (ROOT / document).read_text())) <= targets


def test_every_link_between_the_documents_leads_somewhere():
    for path in (
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
        *ROOT.glob("docs/*.md"),
    ):
        local = [link for link in re.findall(r"\]\(([^)#]+)", path.read_text()) if "://" not in link]
        assert not [link for link in local if not (path.parent / link).exists()]
