"""Mechanisms, what they cost, and how a budget is kept. Pure: no I/O, no clock, no database."""

from terrine_server.privacy.accounting import (
    ORDERS,
    additive_delta,
    epsilon_from_gdp,
    epsilon_from_rdp,
    gdp_budget,
    gdp_squared,
    rdp,
    rdp_budget,
)
from terrine_server.privacy.costs import (
    Composition,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    LedgerEvent,
    PublishedClaim,
    PublishedFigure,
    SparseVectorEpoch,
    StabilityTest,
    WithinEpoch,
    event_from_json,
)
from terrine_server.privacy.mechanisms import build_mechanism
from terrine_server.privacy.mechanisms.base import Mechanism, Outcome, Released
from terrine_server.privacy.mechanisms.interactive_gnmax import InteractiveGNMax
from terrine_server.privacy.noise import Entropy
from terrine_server.privacy.parameters import ParameterError
from terrine_server.privacy.pricing import GDP, Price, Rule, price
from terrine_server.privacy.quoting import Cap, cap, quote
from terrine_server.privacy.sanitize import Publication
from terrine_server.privacy.terms import Account, DeltaSplit, Schedule, Terms

__all__ = [
    "GDP",
    "ORDERS",
    "Account",
    "Cap",
    "Composition",
    "CostEvent",
    "DeltaSplit",
    "Entropy",
    "GaussianNoisyMax",
    "GaussianThreshold",
    "InteractiveGNMax",
    "LaplaceNoisyMax",
    "LedgerEvent",
    "Mechanism",
    "Outcome",
    "ParameterError",
    "Price",
    "Publication",
    "PublishedClaim",
    "PublishedFigure",
    "Released",
    "Rule",
    "Schedule",
    "SparseVectorEpoch",
    "StabilityTest",
    "Terms",
    "WithinEpoch",
    "additive_delta",
    "build_mechanism",
    "cap",
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
