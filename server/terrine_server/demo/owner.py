"""A data owner on this machine: an empty service, its ensembles, projects and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from terrine_protocol import Role, TokenCreate
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.owner.checkpoints import make_checkpoint_key
from terrine_server.owner.operations import make_directories, open_ledger
from terrine_server.owner.tokens import Tokens, load_secret_key, make_secret_key
from terrine_server.settings import Settings


@dataclass(frozen=True)
class DemoOwner:
    """A data directory, and what its owner does there without a server."""

    settings: Settings

    @classmethod
    def of(cls, data: Path) -> DemoOwner:
        """The owner of a directory, whatever TERRINE_* variables say."""
        return cls(
            Settings(
                data_dir=data,
                database_url=f"sqlite:///{(data / 'terrine.sqlite').absolute()}",
                database_password_file=None,
                secret_key_file=data / "secret.key",
                checkpoint_key_file=data / "checkpoint.key",
                log_policy_file=None,
            )
        )

    def prepare(self) -> Ledger:
        """Make the keys and the tables, if there are none, and return the ledger."""
        make_directories(self.settings)
        make_secret_key(self.settings.secret_key_path)
        make_checkpoint_key(self.settings.checkpoint_key_path)
        upgrade(connect(self.settings.database), load_secret_key(self.settings.secret_key_path))
        return open_ledger(self.settings)

    def token(self, ledger: Ledger, role: Role, label: str, project: str | None = None) -> str:
        """Return a new token; a student's is for `project`."""
        tokens = Tokens(ledger, load_secret_key(self.settings.secret_key_path))
        return tokens.create(TokenCreate(role=role, project=project, label=label)).token
