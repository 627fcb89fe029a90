"""How the service, the aggregator and the owners' servers meet unauthenticated clients.

Connections that wait forever, bodies that never end, and how many requests each client may have at
a time are handled in one way for all of them.
"""
