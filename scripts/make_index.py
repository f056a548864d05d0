"""`make index`: writes specs/index.json, which says which spec a config's model_type takes."""

from __future__ import annotations

import json

from tpspec.language.registry import BUILT_IN, make_index

(BUILT_IN / "index.json").write_text(json.dumps(make_index(), indent=1) + "\n")
