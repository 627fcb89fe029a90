"""`python -m terrine_server` is `terrine`."""

from terrine_server.cli import main

main()
