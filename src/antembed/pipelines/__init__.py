"""One file a job: the whole way, top to bottom."""
