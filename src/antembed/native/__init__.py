"""Compiled kernels: how they are compiled and cached, threads, blocks; only what two rooms share. Without torch."""
