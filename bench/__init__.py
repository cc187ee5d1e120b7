"""Benchmarks: each prints figures for people, and as its last line one JSON object for scripts."""
