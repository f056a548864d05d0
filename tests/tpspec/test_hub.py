from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_hub import COMMIT, MODEL, TOKEN, fake_hub
from tiny_files import entries, file_bytes, write_checkpoint

from tpspec.errors import TpspecError
from tpspec.hub import locate, parse_id

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = {ONE: {"embed": (1000, 500), "layer": (2, 2)}, TWO: {"head": (1000, 500), "norm": (2,)}}

DRIVER = """
import json, sys
from tpspec.errors import TpspecError
from tpspec.hub import download, locate
try:
    if sys.argv[1] == "download":
        print(json.dumps({"directory": str(download(sys.argv[2]))}))
    else:
        found = locate(sys.argv[2])
        checkpoint = found.checkpoint
        shown = {"name": found.name, "config": found.config, "modules": [*sys.modules]}
        if checkpoint:
            tensors = {t.name: [t.shape, t.file, t.start, t.stop] for t in checkpoint.tensors.values()}
            shown |= {"tensors": tensors, "format": checkpoint.format, "bins": checkpoint.bin_files}
            shown |= {"local": checkpoint.local, "directory": str(checkpoint.directory)}
            shown |= {"index": checkpoint.index and checkpoint.index.decode()}
        print(json.dumps(shown))
except TpspecError as error:
    sys.exit(f"refused: {error}")
"""


class User:
    """Someone with a cache of their own, who runs commands against a hub."""

    def __init__(self, home: Path, endpoint: str, **environment: str) -> None:
        self.home = home
        kept = {
            name: value for name, value in os.environ.items() if not name.upper().startswith(("HF_", "HUGG"))
        }
        self.environment = {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **environment}

    def run(self, command: str, text: str = MODEL, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", DRIVER, command, text],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def finds(self, text: str = MODEL, command: str = "locate", **environment: str) -> dict:
        run = self.run(command, text, **environment)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    def is_refused(self, text: str = MODEL, command: str = "locate", **environment: str) -> str:
        run = self.run(command, text, **environment)
        assert run.returncode == 1
        assert "Traceback" not in run.stderr
        return run.stderr[run.stderr.index("refused: ") :]


@pytest.fixture
def repository(tmp_path):
    """The files of the model on the hub."""
    folder = write_checkpoint(tmp_path / "repository", SHARDS)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("x" * 1000)
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.00.pth").write_bytes(bytes(1000))
    return folder


@pytest.fixture
def hub(repository):
    with fake_hub(repository) as hub:
        yield hub


@pytest.fixture
def user(tmp_path, hub):
    return User(tmp_path / "home", hub.url)


def header_bytes(path):
    """How long a file's header is, its 8 length bytes included."""
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_of_a_model_on_the_hub_only_config_index_and_headers_are_fetched(user, hub, repository):
    found = user.finds()
    assert found["name"] == MODEL
    assert found["config"] == {"model_type": "llama"}
    assert found["local"] is False
    assert found["index"] == (repository / INDEX).read_text()
    start = header_bytes(repository / ONE)
    assert found["tensors"]["embed"] == [[1000, 500], ONE, start, start + 1_000_000]
    assert list(found["tensors"]) == ["embed", "layer", "head", "norm"]
    assert "torch" not in found["modules"]
    sent = {name: count for name, count in hub.sent.items() if name}
    assert sent == {
        "config.json": (repository / "config.json").stat().st_size,
        INDEX: (repository / INDEX).stat().st_size,
        ONE: header_bytes(repository / ONE),
        TWO: header_bytes(repository / TWO),
    }


def test_a_server_without_ranges_is_hung_up_on_after_the_header(user, hub):
    hub.ranges = False
    (hub.folder / ONE).write_bytes(file_bytes(entries({"embed": (40_000, 500), "layer": (2, 2)})))
    assert len(user.finds()["tensors"]) == 4
    assert hub.sent[ONE] < 20_000_000


def test_a_listing_without_sizes_will_do(user, hub):
    hub.lists_sizes = False
    assert len(user.finds()["tensors"]) == 4


def test_a_revision_may_be_named(user):
    assert user.finds(f"{MODEL}@{COMMIT}")["name"] == f"{MODEL}@{COMMIT}"
    assert "has no revision v9" in user.is_refused(f"{MODEL}@v9")


def test_a_model_of_bin_files_is_found_without_reading_them(user, hub, repository):
    for name in (ONE, TWO, INDEX):
        (repository / name).unlink()
    (repository / "pytorch_model.bin").write_bytes(bytes(1000))
    found = user.finds()
    assert (found["format"], found["bins"], found["tensors"]) == ("bin", ["pytorch_model.bin"], {})
    assert hub.sent["pytorch_model.bin"] == 0


def test_a_model_of_a_config_alone_is_found(user, repository):
    for name in (ONE, TWO, INDEX):
        (repository / name).unlink()
    assert "tensors" not in user.finds()


def test_faults_of_headers_on_the_hub_are_reported_at_once(user, repository):
    content = (repository / ONE).read_bytes()
    (repository / ONE).write_bytes(content[:-1])
    (repository / TWO).write_bytes(b"")
    message = user.is_refused()
    assert f"{ONE}: is cut off" in message
    assert f"{TWO}: has 0 bytes" in message


def test_a_file_that_the_index_names_and_the_hub_lacks_is_reported(user, repository):
    (repository / TWO).unlink()
    assert f"{TWO}: does not exist in {MODEL}" in user.is_refused()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("some-org/absent", "some-org/absent is neither a path here nor a model on http://127.0.0.1"),
        (f"{MODEL}--x", "some-org/some-model--x is neither a path here nor the name of a model"),
    ],
)
def test_a_model_that_does_not_exist_is_refused(user, text, problem):
    message = user.is_refused(text)
    assert problem in message
    assert "  → " in message


def test_a_model_without_config_is_refused(user, repository):
    (repository / "config.json").unlink()
    assert f"{MODEL} has no config.json" in user.is_refused()


def test_a_gated_model_is_refused_saying_where_to_accept_its_terms(user, hub):
    hub.gated = True
    assert f"accept them at {hub.url}/{MODEL}" in user.is_refused()


def test_a_private_model_needs_the_token(user, hub):
    hub.private = True
    assert "set HF_TOKEN" in user.is_refused()
    assert len(user.finds(HF_TOKEN=TOKEN)["tensors"]) == 4


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (429, "answers no more requests for now"),
        (403, "refuses access"),
        (500, "cannot fetch"),
        (418, "cannot fetch"),
    ],
)
def test_a_hub_that_refuses_is_reported_without_asking_on_and_on(user, hub, status, problem):
    hub.failures = [status] * 50
    assert problem in user.is_refused()
    assert len(hub.requests) < 5


def test_a_hub_that_fails_once_amid_the_headers_is_asked_again(user, hub):
    hub.fail_once = ONE
    assert len(user.finds()["tensors"]) == 4
    assert sum(request.endswith(ONE) for request in hub.requests) == 3


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "no-url", "http://host.invalid"])
def test_a_hub_out_of_reach_is_reported_soon(tmp_path, endpoint):
    start = time.monotonic()
    message = User(tmp_path, endpoint).is_refused()
    assert f"cannot fetch {MODEL} from {endpoint}" in message
    assert "check the network, or give a directory" in message
    assert time.monotonic() - start < 20


def test_a_page_of_a_captive_portal_is_reported(user, hub):
    hub.portal = True
    assert f"cannot fetch {MODEL}" in user.is_refused()


def test_a_download_brings_weights_and_what_goes_along_and_is_found_offline(user, hub, repository):
    (repository / "pytorch_model.bin").write_bytes(bytes(1000))
    directory = Path(user.finds(command="download")["directory"])
    held = sorted(path.name for path in directory.rglob("*") if path.is_file())
    assert held == ["README.md", "config.json", ONE, TWO, INDEX, "tokenizer.json"]
    assert (directory / ONE).read_bytes() == (repository / ONE).read_bytes()
    before = len(hub.requests)
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        found = user.finds(**environment)
        assert (found["local"], found["directory"]) == (True, str(directory))
        assert len(found["tensors"]) == 4
    assert user.finds(command="download", HF_HUB_OFFLINE="1") == {"directory": str(directory)}
    assert len(hub.requests) == before


def test_a_download_out_of_reach_falls_back_to_a_complete_cache_only(user):
    unreachable = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    user.finds()  # leaves config and index in the cache
    assert "cannot fetch" in user.is_refused(command="download", **unreachable)
    directory = user.finds(command="download")["directory"]
    assert user.finds(command="download", **unreachable) == {"directory": directory}


def test_offline_a_config_in_the_cache_is_found_by_itself(user):
    user.finds()
    found = user.finds(HF_HUB_OFFLINE="1")
    assert found["config"] == {"model_type": "llama"}
    assert "tensors" not in found


def test_offline_a_model_that_is_not_in_the_cache_is_refused(user, hub):
    message = user.is_refused(HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in message
    assert str(user.home) in message
    assert not hub.requests


def test_a_dangling_link_in_the_cache_is_refused_by_name(user):
    """(huggingface_hub#1388) A snapshot's link to a blob that was removed."""
    directory = Path(user.finds(command="download")["directory"])
    (directory / ONE).resolve().unlink()
    message = user.is_refused(HF_HUB_OFFLINE="1")
    assert ONE in message
    assert "does not exist" in message


def test_a_directory_is_found_with_its_checkpoint(repository):
    found = locate(str(repository))
    assert found.name == str(repository)
    assert found.checkpoint
    assert len(found.checkpoint.tensors) == 4


def test_a_directory_of_a_config_alone_is_found(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    found = locate(str(tmp_path))
    assert (found.config, found.checkpoint) == ({"model_type": "llama"}, None)


@pytest.mark.parametrize("name", ["config.json", "Meta-Llama-3-70B.json"])
def test_a_config_file_is_found_by_itself(tmp_path, name):
    (tmp_path / name).write_text('{"model_type": "llama"}')
    found = locate(str(tmp_path / name))
    assert (found.config, found.checkpoint) == ({"model_type": "llama"}, None)


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors", "README"])
def test_another_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(TpspecError, match=r"is neither a directory nor a \.json file"):
        locate(str(tmp_path / name))


@pytest.mark.parametrize(
    "text",
    [
        *("absent", "./some-org/some-model", "../x/y", "/abs/olute", "a/b/c", "", "some-org/", "org/x.json"),
        *("models/x.safetensors", "org/name@", "org/name@a b", "org/na me", "-org/name", "gpt2", "~/model"),
    ],
)
def test_what_is_neither_a_path_here_nor_an_id_is_no_such_file(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TpspecError) as caught:
        locate(text)
    assert caught.value.message == f"{text}: no such file or directory"
    assert "org/name[@revision]" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("meta-llama/Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B", None),
        ("a/b.c-d_e@refs/pr/1", "a/b.c-d_e", "refs/pr/1"),
        ("01-ai/Yi-6B@v1.0", "01-ai/Yi-6B", "v1.0"),
    ],
)
def test_an_id_is_parsed(text, name, revision):
    model = parse_id(text)
    assert (model.name, model.revision, str(model)) == (name, revision, text)


def test_paths_are_located_without_importing_huggingface_hub(repository, tmp_path):
    found = User(tmp_path, "http://127.0.0.1:9").finds(str(repository))
    assert not [name for name in found["modules"] if name.startswith(("huggingface_hub", "torch", "httpx"))]
