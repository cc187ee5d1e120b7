"""Kinds of runs: the runners beside the token, and the programs that run without it."""
