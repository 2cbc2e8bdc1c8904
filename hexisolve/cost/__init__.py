"""How much: FLOP, bytes and seconds of single pieces of work."""
