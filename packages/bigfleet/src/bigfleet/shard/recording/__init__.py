"""What a shard records of itself, so that any incident can be derived again from its events."""
