"""Target models, one architecture a file: the graph, and beside it the names and keys of each format."""
