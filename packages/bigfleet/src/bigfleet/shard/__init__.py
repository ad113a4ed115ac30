"""The shard: the process that decides for a slice of machines and drives their providers."""
