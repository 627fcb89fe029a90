"""Reference implementations, with which tests compare the product."""
