"""Reference implementations, with which benchmarks and tests compare the product."""
