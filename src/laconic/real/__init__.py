"""The real engine: worker processes joined by torch.distributed."""
