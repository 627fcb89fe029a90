"""A transparency log's formats and proofs: what the service, its clients and witnesses share.

Pure, and by the public specifications: c2sp.org/signed-note, tlog-checkpoint, tlog-cosignature,
tlog-tiles, tlog-proof, tlog-policy, and the Merkle trees of RFC 6962. Only signatures need more
than Python: `cryptography`, imported where one is made or checked.

notes         text with signatures of named keys
checkpoints   size and root of a tree, as a note, and its cosignatures
trees         hashes, roots and proofs
tiles         a tree as files of 256 hashes
leaves        what stands in the tree for an entry of the ledger
policies      whose signatures a checkpoint needs
proofs        a proof of inclusion with its checkpoint, as a file
"""
