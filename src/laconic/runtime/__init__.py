"""Training on one worker: gradients from autograd, buckets, messages in flight, the step; checkpoints and metrics."""
