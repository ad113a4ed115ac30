"""Shards, operators and providers in a world without clocks, threads or sockets.

The cores are the real ones; what is slow or random outside is replaced by virtual time and a seed.
"""
