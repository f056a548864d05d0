"""Running a model from a pre-sharded directory (torch).

    from tpspec.runtime import load

    model = load("stories-tp2", threads=True)
    print(model.generate("Once upon a time", max_new_tokens=20)[0].text)

A rank loads its own file and no other. Under torchrun each process is one rank: `load(directory)` there, and
call `generate` with the same arguments in all of them, of which rank 0's count. With `threads=True` all ranks
are threads of this process, which is handy for tests; `tpspec run` makes each a process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpspec.runtime.model import Model


def load(
    directory: str | Path,
    *,
    threads: bool = False,
    spec: str | Path | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    verify: bool = True,
    code: str | Path | None = None,
) -> Model:
    """Loads this process's rank of a directory that `tpspec convert` wrote; all ranks with `threads`.

    `dtype` is a name of torch's such as "float32", None for the stored type; `verify` checks the files'
    hashes; `code` is a Python file that registers the model's classes where transformers has none.
    Of a quantized directory, each rank computes its weights in that dtype, or the config's.
    Raises TpspecError for a directory that is damaged or cut for another number of ranks.

    >>> model = load("stories-tp2", threads=True)
    >>> model.generate("Once upon a time", max_new_tokens=11)[0].text
    ', there was a little girl named Lily.'
    """
    from tpspec.runtime.loading import Loading
    from tpspec.runtime.model import load_model

    spec_file, code_file = (None if path is None else Path(path) for path in (spec, code))
    loading = Loading(Path(directory), spec_file, dtype, device, verify, code_file)
    return load_model(loading, threads=threads)
