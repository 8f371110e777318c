"""Lists of gradients, reduced in one pass."""
