"""scikit-learn manners over tasks and runs: Recommender, TextClassifier, LanguageModel, HashedNgramClassifier."""
