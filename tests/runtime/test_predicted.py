"""How many collectives a forward pass is said to run."""

from __future__ import annotations

from tpspec.sites import Site, predicted

SITES = [
    Site("embedding", "bytes"),
    Site("embedding", "groups", runs=6),
    Site("reduce", "mlp"),
    Site("reduce", "mlp"),
    Site("hold", "attention"),
    Site("reduce", "cross_attention", runs=0),
    Site("logits", "head"),
]


def test_a_place_counts_once_each_time_that_its_module_runs():
    assert predicted(SITES) == {"all_reduce": 1 + 6 + 1, "all_gather": 1}


def test_what_text_alone_passes_over_runs_once_with_other_inputs():
    assert predicted(SITES, text_alone=False) == {"all_reduce": 1 + 6 + 1 + 1, "all_gather": 1}
