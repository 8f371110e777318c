"""Process groups: their making, their memory, and the paths of their calls."""
