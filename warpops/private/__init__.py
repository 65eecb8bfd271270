"""What is no public API of Warp, PyTorch or Python: everybody else asks here."""
