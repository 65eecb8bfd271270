"""What a caller gives: one file for each kind of argument, and the check of them together."""
