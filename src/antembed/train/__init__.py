"""What every task shares: config, training loop, checkpoints, run folders."""
