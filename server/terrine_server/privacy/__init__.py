"""Mechanisms, their costs, and how a budget is enforced. Pure: no I/O, no clock, no database."""

from terrine_server.privacy.budget import Account, DeltaSplit, PaidRelease, Schedule, Terms
from terrine_server.privacy.curves import (
    additive_delta,
    epsilon_from_gdp,
    epsilon_from_rdp,
    gdp_budget,
    gdp_squared,
    rdp,
    rdp_budget,
)
from terrine_server.privacy.events import (
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
    ReleasedCounts,
    StabilityTest,
    event_from_json,
)
from terrine_server.privacy.mechanisms import build_mechanism
from terrine_server.privacy.mechanisms.base import (
    ComparesWithStudent,
    Mechanism,
    Released,
    VoteOutcome,
)
from terrine_server.privacy.mechanisms.neighbours import Accounts, Neighbours, Units
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.mechanisms.sums import SumAnswers
from terrine_server.privacy.noise import Entropy
from terrine_server.privacy.parameters import ParameterError
from terrine_server.privacy.prices import Price, price
from terrine_server.privacy.published import BoundRelease
from terrine_server.privacy.quoting import Cap, cap, cap_order, cap_share, quote
from terrine_server.privacy.releases import Histograms, Sums, build_release
from terrine_server.privacy.rules import GDP, Rule
