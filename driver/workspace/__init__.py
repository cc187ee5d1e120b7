"""The workspace on disk: where things are, how an archive comes in, and how a result goes out."""
