"""How large language models are cut for tensor parallelism, as data."""

__version__ = "0.1.0"
