"""From the plan to Python text. Decides nothing."""
