"""Child programs: starting, listening, limiting, ending, and proving that nothing of them is left."""
