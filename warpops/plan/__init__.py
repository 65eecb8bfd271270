"""Every decision about one op, each with its reason. No torch, no Warp."""
