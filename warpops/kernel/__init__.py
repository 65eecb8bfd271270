"""What Warp says of a kernel, as plain data."""
