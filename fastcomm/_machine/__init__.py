"""What is known of this machine: which it is, and what `check` and `tune` have found."""
