"""Writing the launches of one kernel as Python text. ``warpops.emit`` puts the parts together."""
