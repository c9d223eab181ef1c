"""Tables whose rows are spread over processes, on torch.distributed (docs/distributed.md)."""
