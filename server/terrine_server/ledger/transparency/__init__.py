"""The transparency log: one Merkle tree over all entries of the ledger, for everybody to check.

tree      its leaves and nodes in the database, and the keys of its leaves
checking  whether it holds the ledger's entries, and whether it ever forked
log       grows it, and keeps the last checkpoint that was signed
"""
