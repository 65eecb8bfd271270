"""DTensor: which rows of an op's arrays can be computed alone. Nothing below knows of it."""
