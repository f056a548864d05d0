"""The closed set of tags, and what each means for a module's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tag:
    """`dimension` of the weight is cut; `bias` says what becomes of a bias; `collective` follows."""

    name: str
    dimension: Literal["out", "in"] | None
    bias: Literal["cut", "once", "whole"]
    collective: str = ""

    @property
    def cuts(self) -> bool:
        """Whether the tag shares a dimension out."""
        return self.dimension is not None


TAGS = {
    tag.name: tag
    for tag in (
        Tag("column", "out", "cut"),
        Tag("row", "in", "once", "all-reduce"),
        Tag("qkv-head", "out", "cut"),
        Tag("merged", "out", "cut"),
        Tag("vocab", "out", "cut", "all-reduce of the embedding, all-gather of the logits"),
        Tag("select", None, "whole"),
        Tag("once", None, "once"),
        Tag("replicated", None, "whole"),
        Tag("drop", None, "whole"),
        Tag("unused", None, "whole"),
    )
}
"""Tag name → tag. `drop` and `unused` tensors belong to no rank; merging keeps them."""

NO_RANK = ("drop", "unused")
