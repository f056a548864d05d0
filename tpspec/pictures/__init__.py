"""The shard map and the plan as pictures: one page without a network, figures for slides."""
