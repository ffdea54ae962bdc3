"""Models that PyTorch's `fully_shard` has sharded (FSDP2), with this library's ways to communicate in its hooks."""
