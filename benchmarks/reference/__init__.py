"""Reference implementations, which benchmarks and tests compare with the product."""
