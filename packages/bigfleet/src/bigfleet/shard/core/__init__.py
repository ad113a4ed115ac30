"""The shard's rules: events and the time in, effects out; no I/O, no clock, no randomness."""
