"""Fleets for benchmarks and load: catalogues of workloads, the machines they take, the demand they make.

Everything here yields values of ``bigfleet_base.model`` and is the same in every run with the same settings.
"""

from bigfleet.scale.catalogue import GPU, RACK_KEY, REALISTIC, ZONES, Archetype, Catalogue, Size, resources
from bigfleet.scale.fleet import CatalogueFleet, Workload
from bigfleet.scale.minting import cluster_names, mint
from bigfleet.scale.mix import MixedFleet
from bigfleet.scale.prices import TIER_PRICES, Listing, PriceBook, Quote
from bigfleet.scale.rarities import Fleet, WithRarities, hopeless

__all__ = [
    "GPU",
    "RACK_KEY",
    "REALISTIC",
    "TIER_PRICES",
    "ZONES",
    "Archetype",
    "Catalogue",
    "CatalogueFleet",
    "Fleet",
    "Listing",
    "MixedFleet",
    "PriceBook",
    "Quote",
    "Size",
    "WithRarities",
    "Workload",
    "cluster_names",
    "hopeless",
    "mint",
    "resources",
]
