"""Bytes: cutting checkpoints into one file per rank, checking them, putting them together again."""
