"""From private records to an open project: what `terrine quickstart` does, for any front end.

dialogue    what the owner is asked, and the schema of a table that comes of it
records     reads private and public records, as a project would use them
report      says who is protected, how much, by what, what it buys and what is used
choice      forecasts each way to ask the records, and takes one
opening     makes the ensemble, registers it, and opens the project
"""
