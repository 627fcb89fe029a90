"""Small real data for teachers: scikit-learn's digits, and points in a plane."""

from support.data import digits, out, plane

__all__ = ["digits", "out", "plane"]
