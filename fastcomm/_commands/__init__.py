"""Commands of ``fastcomm`` that are not packages of their own, and what all commands share."""
