"""Devices of one process, and the CPU's slots: lists of tensors on them, and their streams."""
