"""What processes would make at their start, made once by the one that they fork from."""

from __future__ import annotations

from terrine_server.cli import command_line

command_line()
