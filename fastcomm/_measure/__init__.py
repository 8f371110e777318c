"""Calls timed on ranks: what ``bench``, ``check`` and ``tune`` share."""
