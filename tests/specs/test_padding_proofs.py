"""What docs/padding.md says of every architecture is in docs/padding_proofs.json."""

from __future__ import annotations

from scripts.padding_proofs import failures, kinds, read_proofs


def test_every_decoder_type_is_proved_with_padding() -> None:
    proofs = read_proofs()
    assert list(proofs) == kinds(), "make padding-proofs"
    assert failures(proofs) == []
