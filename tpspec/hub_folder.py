"""A model on the Hugging Face Hub: in its cache, by its headers alone, or downloaded whole.

Importing this module imports huggingface_hub, which takes a third of a second.
"""

from __future__ import annotations

import glob
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import (
    HfApi,
    constants,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from tpspec import __version__
from tpspec.carried_files import carried
from tpspec.checkpoint import MAX_JSON, Directory, Headers
from tpspec.config import CONFIG
from tpspec.errors import Finding, TpspecError
from tpspec.hub import ModelId
from tpspec.hub_errors import hub_errors
from tpspec.regular_file import read_regular
from tpspec.safetensors_header import StoredFile, header_length, parse_header
from tpspec.weight_files import find_weights

THREADS = 16
RETRIES = 2
RETRY_ON = (500, 502, 503, 504)


@dataclass(frozen=True)
class HubFolder:
    """A model's repository at one commit; `files` are its paths with their sizes."""

    model: ModelId
    commit: str
    files: tuple[tuple[str, int], ...]
    local: bool = False

    @property
    def path(self) -> Path:
        return Path(str(self.model))

    def names(self) -> frozenset[str]:
        return frozenset(path for path, _ in self.files if "/" not in path)

    def read(self, name: str) -> bytes:
        """Fetches a small file by way of the cache."""
        self.check(name)
        with hub_errors(self.model):
            path = hf_hub_download(self.model.name, name, revision=self.commit)
        return read_regular(Path(path), MAX_JSON, name)

    def check(self, name: str) -> None:
        if name not in self.names():
            finding = Finding(
                name,
                f"does not exist in {self.model}",
                remedy="the repository is incomplete: choose another revision",
            )
            raise TpspecError(f"cannot read {name}", [finding])

    def headers(self, names: tuple[str, ...]) -> Headers:
        pool = ThreadPoolExecutor(THREADS)
        futures = [pool.submit(self._header, name) for name in names]
        try:
            for future in futures:
                yield future.result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _header(self, name: str) -> StoredFile:
        self.check(name)
        prefix, size = self._fetch(name, 0, 8)
        length = header_length(name, prefix, size)
        header = self._fetch(name, 8, 8 + length)[0] if length else b""
        return parse_header(self.path / name, header, size)

    def _fetch(self, name: str, start: int, stop: int) -> tuple[bytes, int]:
        """Bytes of a file and the file's size; a server that ignores ranges is cut short."""
        url = hf_hub_url(self.model.name, name, revision=self.commit)
        headers = build_hf_headers(library_name="tpspec", library_version=__version__)
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        data = bytearray()
        with (
            hub_errors(self.model),
            http_stream_backoff(
                "GET",
                url,
                max_retries=RETRIES,
                retry_on_status_codes=RETRY_ON,
                headers=headers,
                timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            ) as response,
        ):
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            if response.status_code == 416:  # what a range of an empty file is answered with
                return b"", int(total)
            hf_raise_for_status(response)
            skip = 0 if response.status_code == 206 else start
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) >= skip + stop - start:
                    break
            return bytes(data[skip : skip + stop - start]), int(total or response.headers["Content-Length"])


def open_folder(model: ModelId) -> HubFolder:
    """Finds a model's commit and files on the Hub, and puts its config into the cache."""
    disable_progress_bars("huggingface_hub.http_get")
    with hub_errors(model):
        info = HfApi().model_info(
            model.name,
            revision=model.revision,
            files_metadata=True,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        )
        files = tuple((sibling.rfilename, sibling.size or 0) for sibling in info.siblings or ())
        # asked for by branch, not by commit, so that the cache learns which commit the branch stands for
        config = hf_hub_download(model.name, CONFIG, revision=model.revision)
    return HubFolder(model, Path(config).parent.name, files)


def cached_snapshot(model: ModelId) -> Directory | None:
    """The directory in the cache that holds the model's config."""
    with hub_errors(model):
        config = try_to_load_from_cache(model.name, CONFIG, revision=model.revision)
    return Directory(Path(config).parent) if isinstance(config, str) else None


def is_complete(snapshot: Directory) -> bool:
    """Whether all weight files are in the cache, which may hold a config and an index alone."""
    try:
        return set(find_weights(snapshot.names(), snapshot.read).names) <= snapshot.names()
    except TpspecError:
        return False


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids to ask the Hub."""
    return constants.HF_HUB_OFFLINE


def download_model(model: ModelId) -> Path:
    """Downloads one format of a model's weights and what goes along with them into the cache.

    Where the Hub cannot be asked, a complete copy in the cache will do.
    """
    try:
        folder = open_folder(model)
    except TpspecError:
        snapshot = cached_snapshot(model)
        if snapshot and is_complete(snapshot):
            return snapshot.path
        raise
    weights = find_weights(folder.names(), folder.read)
    wanted = [*weights.names, *filter(None, [weights.index_name]), *carried(folder.files)]
    with hub_errors(model):
        patterns = [glob.escape(name) for name in wanted]
        return Path(snapshot_download(model.name, revision=folder.commit, allow_patterns=patterns))
