"""Files → columns: readers, vocabularies, relations, caches, downloads. Without torch."""
