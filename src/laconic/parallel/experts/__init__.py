"""Expert parallelism: layers of many small networks, each on one device, to which tokens travel."""
