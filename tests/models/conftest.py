"""Small real data for teachers: scikit-learn's digits, and points in a plane."""

from digits import digits, out, plane

__all__ = ["digits", "out", "plane"]
