"""Mechanisms, their costs, and how a budget is enforced. Pure: no I/O, no clock, no database."""

from terrine_server.privacy.accounting.conversions import (
    epsilon_from_gdp,
    epsilon_from_rdp,
    gdp_budget,
    rdp_budget,
)
from terrine_server.privacy.accounting.curves import additive_delta, gdp_squared, rdp
from terrine_server.privacy.accounting.events import (
    Composition,
    ConfidentMax,
    CostEvent,
    GaussianArgmax,
    GaussianNoisyCounts,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceArgmax,
    LaplaceNoisyMax,
    LedgerEvent,
    NeighbourCounts,
    PublishedBound,
    SparseVectorEpoch,
    StabilityTest,
    WithinEpoch,
    event_from_json,
)
from terrine_server.privacy.budget.prices import Price, price
from terrine_server.privacy.budget.quoting import Cap, cap, cap_order, quote
from terrine_server.privacy.budget.rules import GDP, Rule
from terrine_server.privacy.budget.terms import Account, DeltaSplit, Schedule, Terms
from terrine_server.privacy.mechanisms import build_mechanism
from terrine_server.privacy.mechanisms.base import Mechanism, Released, VoteOutcome
from terrine_server.privacy.mechanisms.interactive_gnmax import InteractiveGNMax
from terrine_server.privacy.mechanisms.neighbours import Accounts, Neighbours, Units
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.noise import Entropy
from terrine_server.privacy.parameters import ParameterError
from terrine_server.privacy.published.release import BoundRelease

__all__ = [
    "GDP",
    "Account",
    "Accounts",
    "BoundRelease",
    "Cap",
    "Composition",
    "ConfidentMax",
    "CostEvent",
    "DeltaSplit",
    "Entropy",
    "GaussianArgmax",
    "GaussianNoisyCounts",
    "GaussianNoisyMax",
    "GaussianThreshold",
    "InteractiveGNMax",
    "LaplaceArgmax",
    "LaplaceNoisyMax",
    "LedgerEvent",
    "Mechanism",
    "NeighbourCounts",
    "Neighbours",
    "NoisyVotes",
    "ParameterError",
    "Price",
    "PublishedBound",
    "Released",
    "Rule",
    "Schedule",
    "SparseVectorEpoch",
    "StabilityTest",
    "Terms",
    "Units",
    "VoteOutcome",
    "WithinEpoch",
    "additive_delta",
    "build_mechanism",
    "cap",
    "cap_order",
    "epsilon_from_gdp",
    "epsilon_from_rdp",
    "event_from_json",
    "gdp_budget",
    "gdp_squared",
    "price",
    "quote",
    "rdp",
    "rdp_budget",
]
