"""The bytes of a launch, and the entry points that take them. Knows nothing of plans."""
