"""How this house's servers meet unauthenticated clients: the service, the aggregator and the
owners' servers.

Connections that wait for ever, bodies that never end, and who may have how many places at a time:
one way for all of them.
"""
