"""scikit-learn manners over tasks and runs: Recommender, TextClassifier, HashedNgramClassifier."""
