"""Ranks as processes of this host: `fastcomm.launch`, and ``fastcomm run --nproc``."""
