"""Optimizers over fastcomm."""

from fastcomm.optim.sharded_optimizer import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
