"""Drafting a spec from what an architecture shows: names, shapes, and how these move with the config."""
