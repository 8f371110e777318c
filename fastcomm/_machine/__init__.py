"""What is known about this machine: which it is, and what `check` and `tune` have found."""
