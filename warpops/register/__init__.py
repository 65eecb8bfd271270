"""What PyTorch's registry holds of an op, and how it comes out again."""
