"""This machine: its identity, and the findings of `check` and `tune`."""
