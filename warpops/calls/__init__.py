"""The ways that a call takes, from the generated text to the launch."""
