"""Language models: corpora, softmaxes, LanguageModel."""
