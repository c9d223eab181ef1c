"""A trained model in a folder (a run, a saved estimator, an export), used without torch, training data and checkpoint."""
