"""A kind that has the model greet the authors of a change."""
