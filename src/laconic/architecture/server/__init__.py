"""A parameter server, whatever carries its letters: shards, what they hold, what they answer, how workers speak."""
