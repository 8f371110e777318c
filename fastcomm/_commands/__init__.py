"""Commands of ``fastcomm`` that are no packages of their own, and what all have in common."""
