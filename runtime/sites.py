"""From the places where a spec says that ranks meet to the modules of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tpspec.errors import Finding, TpspecError
from tpspec.resolution import Resolution
from tpspec.runtime.memory_names import MemoryNames
from tpspec.sites import Kind, Site, implied_sites


def find_sites(resolution: Resolution, names: MemoryNames, tp: int) -> list[Site]:
    """The sites of a model. Raises TpspecError for a rule whose module the model does not have."""
    sites: dict[tuple[Kind, str], Site] = {}
    for implied in implied_sites(resolution, tp):
        site = _located(implied, names)
        if site:
            sites.setdefault((site.kind, site.module), site)
    for site in _repeated(list(sites.values()), names):
        sites.setdefault((site.kind, site.module), site)
    return list(sites.values())


def partial_sums(resolution: Resolution, names: MemoryNames, sites: Iterable[Site]) -> frozenset[str]:
    """The modules of a model that give a part of a sum, or two sums: what a sibling held back as well."""
    sites = list(sites)
    sums = {site.module for site in sites if site.kind in ("reduce", "reduce_input")}
    held = {site.module: site.partner for site in sites if site.kind == "hold"}
    whole = sums.union(*map(_around, sums))
    partial = set(held)
    for module, partner in held.items():
        partial |= {partner} | (_around(partner) - _around(module))
    for item in resolution.shared:
        if item.placed.rule.tag == "row" and item.tensor:
            for around in map(_around, _parameters(item.tensor.name, names)):
                if item.placed.rule.reduce_before or around & (sums | held.keys()):
                    partial |= around - whole
    return frozenset(partial)


def _parameters(stored: str, names: MemoryNames) -> Iterator[str]:
    """The model's parameters that a stored tensor becomes, or becomes a part of."""
    alone, stacks = names.stacked([stored])
    parts = [part for name in alone for part in names.parts(name)]
    yield from filter(None, map(names.tensor, [*parts, *(stack.into for stack in stacks)]))


def _around(name: str) -> set[str]:
    """The modules that a module or tensor lies in."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def _located(site: Site, names: MemoryNames) -> Site | None:
    """The site at the model's module; None for a vocabulary or a module without weights that it has not."""
    if site.kind in ("once", "embedding", "logits"):
        module = names.module(site.module)
        if module and site.kind != "once":
            _check_vocabulary(site, names, module)
        return replace(site, module=module) if module else None
    if site.kind == "statistics":
        # A bare parameter (a norm's `scale`) is the norm's own; the module around it is what runs.
        around = site.module.rpartition(".")[0]
        return replace(site, module=names.module(site.module) or _module(site, around, names))
    partner = _module(site, site.partner, names) if site.partner else ""
    return replace(site, module=_module(site, site.module, names), partner=partner)


def _repeated(sites: list[Site], names: MemoryNames) -> Iterator[Site]:
    """The sites again of modules whose weights other modules share (a block that several layers run)."""
    shared = {target.rpartition(".")[0]: source.rpartition(".")[0] for target, source in names.tied.items()}
    for module, owner in shared.items():
        for site in sites:
            if site.module == owner and site.kind not in ("once", "embedding", "logits"):
                yield replace(site, module=module)


def _module(site: Site, name: str, names: MemoryNames) -> str:
    module = names.module(name)
    if module is None:
        problem = f"the model has no module {name} to run its collective at"
        remedy = "stacked experts have none of their own: say reduce_at: the block that holds them"
        raise _cannot_run(site, problem, remedy)
    return module


def _check_vocabulary(site: Site, names: MemoryNames, module: str) -> None:
    looks_up = hasattr(names.modules[module], "num_embeddings")
    if looks_up != (site.kind == "embedding"):
        said, is_ = ("an embedding", "a head") if site.kind == "embedding" else ("a head", "an embedding")
        problem = f"the spec says that {module} is {said}; in the model it is {is_}"
        raise _cannot_run(site, problem, "a head says `tied_to`, or `head: true`")


def _cannot_run(site: Site, problem: str, remedy: str) -> TpspecError:
    assert site.placed
    finding = Finding(site.placed.template, problem, site.placed.place, remedy)
    return TpspecError(f"{site.placed.place}: the rule cannot run", [finding])
