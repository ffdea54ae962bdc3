"""The table of federated rules on CIFAR-10: what is trained, which runs it needs, and how its rows are read."""
