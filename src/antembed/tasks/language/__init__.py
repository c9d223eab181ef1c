"""The next word of a text: corpora, recurrent networks and Transformers over one tied table, and their output layers."""
