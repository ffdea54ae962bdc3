"""Jobs and GPUs: policies that decide who runs where, and a driver that replays them under a virtual clock."""
