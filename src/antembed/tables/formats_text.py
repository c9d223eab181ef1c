"""Text files of vectors: GloVe's, word2vec's (also binary), and those of the Embedding Projector."""

from collections.abc import Iterator
from pathlib import Path

from antembed.files import write_atomically
from antembed.tables.formats_named import Named, checked_words
from antembed.tables.word2vec_files import SEPARATORS, binary_rows, number_lines, text_rows


def write_glove(named: Named, out: Path) -> list[Path]:
    """A word and its numbers a line; rows without words have their numbers as words. Words may contain spaces, as GloVe's."""
    pieces = named.pieces()
    write_atomically(out, (text_rows(checked_words(named, ids, "\n\r", "glove"), named.table[ids]) for ids in pieces))
    return [out]


def write_word2vec(named: Named, out: Path) -> list[Path]:
    """As GloVe, after a line that says how many; binary if the file is called .bin."""

    def contents() -> Iterator[bytes]:
        yield f"{len(named.table)} {named.table.embedding_dim}\n".encode()
        for ids in named.pieces():
            words = checked_words(named, ids, SEPARATORS, "word2vec")
            yield (binary_rows if out.suffix == ".bin" else text_rows)(words, named.table[ids])

    write_atomically(out, contents())
    return [out]


def write_projector(named: Named, out: Path) -> list[Path]:
    """OUT.tsv with the vectors, OUT.metadata.tsv with the words, for projector.tensorflow.org."""
    labels = out.with_suffix(".metadata.tsv")
    write_atomically(
        out, ("".join(f"{line}\n" for line in number_lines(named.table[ids], "\t")).encode() for ids in named.pieces())
    )
    names = (checked_words(named, ids, "\t\n\r", "projector") for ids in named.pieces())
    write_atomically(labels, ("".join(f"{word}\n" for word in some).encode() for some in names))
    return [out, labels]
