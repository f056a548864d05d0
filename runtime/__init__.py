"""Running a model from a pre-sharded directory, one rank per process (torch)."""
