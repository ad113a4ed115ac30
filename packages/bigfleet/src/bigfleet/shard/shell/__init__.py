"""The shard's side towards the world: sockets, files, clocks and signals."""
