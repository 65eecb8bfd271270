"""One op of a Python function that launches several kernels."""
