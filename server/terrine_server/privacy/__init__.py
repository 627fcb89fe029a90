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
    StabilityTest,
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
