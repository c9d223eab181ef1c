"""For our own evidence: sweeps, recipes' records, benches, and the tables and pictures of the documents."""
