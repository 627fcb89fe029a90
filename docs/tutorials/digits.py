"""Divide scikit-learn's handwritten digits: `private.npz`, `pool.npz` and `own.npz`, here."""

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
images, names = (digits.images * 15).astype(np.uint8), digits.target.astype(np.int64)
order = np.random.default_rng(0).permutation(len(names))
private, pool, own = np.split(order, [1200, 1600])

np.savez("private.npz", x=images[private], y=names[private])  # the data owner's
np.savez("pool.npz", x=images[pool])  # public, and nobody has labelled them
np.savez("own.npz", x=images[own], y=names[own])  # the student's, to test with
