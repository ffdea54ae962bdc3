"""The parameter server over any transport: shards, what they hold and answer, and the workers' client."""
