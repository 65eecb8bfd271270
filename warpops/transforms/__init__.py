"""torch.func: an op under grad, vjp and vmap."""
