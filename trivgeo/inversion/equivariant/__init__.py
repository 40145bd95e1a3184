"""Networks made equivariant at test time."""
