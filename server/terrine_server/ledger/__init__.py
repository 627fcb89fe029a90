"""The ledger: append-only charges, and the balances that follow from them.

`connect`, `upgrade`, `check_schema` open a database, migrate it, check its version
`check_definitions`                  whether its whole schema is as the migrations make it
`schema_revision`                    which tables this version has
`check_writable`                     whether a charge could be made durable
`check_rights`                       whether this account of PostgreSQL may do all that is needed
`check_active`                       raise unless a project is active
`Ledger`                             holds ensembles, projects, charging, entries, tokens, log,
                                     losses, tree, exports and verifier
`seal`                               seal a ledger of an earlier version, or with another key
"""

from terrine_server.ledger.chain import Action, Actor
from terrine_server.ledger.charging import check_active
from terrine_server.ledger.database import connect
from terrine_server.ledger.definitions import check_definitions
from terrine_server.ledger.ensembles import (
    DEFAULT_POPULATION,
    check_delta,
    check_unit,
    choose_population,
)
from terrine_server.ledger.ledger import Ledger
from terrine_server.ledger.migrating import check_rights, check_writable, upgrade
from terrine_server.ledger.projects import Maintenance, NewProject, RestoredProjects
from terrine_server.ledger.records import (
    NEIGHBOURS,
    SUMS,
    ChargedBatch,
    ChargeRecord,
    Edition,
    EnsembleRecord,
    History,
    Payment,
    PopulationRecord,
    ProjectPosition,
    ProjectRecord,
    ProjectSnapshot,
    Proposal,
    Publication,
    QueryDigest,
    RecordedCharges,
    Result,
    SpentAccounts,
    TokenRecord,
)
from terrine_server.ledger.resealing import seal
from terrine_server.ledger.revisions import check_schema, schema_revision
from terrine_server.ledger.tokens import NewToken
