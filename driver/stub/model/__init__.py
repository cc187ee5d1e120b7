"""The scripted model: what it says, and how each of the three wires carries it."""
