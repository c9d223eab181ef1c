"""Files as other programs write them: encodings, escaped quotation marks, semicolons, decimal commas; and one line about it."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from antembed.classify.documents import read_documents
from antembed.data.text_file import DataError, as_utf8, is_escaped, is_western, with_doubled_marks
from antembed.recommend.read_ratings import read_ratings
from antembed.recommend.read_stream import RatingStream

ROWS = [("Jörg", "Café, das", 4.5), ("Ann", "Öl", 3.0), ("Jörg", "Öl", 1.0)]
TEXT = "user,item,rating\n" + "".join(f'{u},"{i}",{r}\n' for u, i, r in ROWS)
LABELLED = "label,text\n" + "".join(f'x{n % 2},"Überall {word}"\n' for n, word in enumerate(["Öl", "Café", "Bär"]))
ENCODINGS = {
    "utf-8-sig": "UTF-8 (byte order mark)",
    "utf-16": "UTF-16 (byte order mark)",
    "utf-16-be": "UTF-16 (byte order mark)",
    "utf-32": "UTF-32 (byte order mark)",
    "cp1252": "Windows-1252 (it is not UTF-8)",
    "latin-1": "Windows-1252 (it is not UTF-8)",
}


def encoded(text, encoding):
    return ("\ufeff" * (encoding == "utf-16-be") + text).encode(encoding)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_ratings_in_other_encodings(tmp_path, encoding, packed):
    data = encoded(TEXT.replace(",", ";"), encoding)
    (tmp_path / "r.csv").write_bytes(gzip.compress(data) if packed else data)
    ratings = read_ratings(tmp_path / "r.csv")
    assert ratings.user_labels.to_list() == ["Ann", "Jörg"]
    assert ratings.item_labels.to_list() == ["Café; das", "Öl"]
    assert ratings.values.tolist() == [4.5, 3.0, 1.0]
    (note,) = ratings.notes
    assert note.endswith(
        f"read as {ENCODINGS[encoding]}, separator ';'; if that is wrong, convert the file to UTF-8 with commas"
    )


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_text_in_other_encodings(tmp_path, encoding, name):
    contents = {
        "a.csv": LABELLED,
        "a.jsonl": '{"label": "x0", "text": "Überall Öl"}\n{"label": "x1", "text": "Überall Café Bär"}\n',
        "a.txt": "Überall Öl\nÜberall Café Bär\n",
    }
    (tmp_path / name).write_bytes(encoded(contents[name], encoding))
    documents = read_documents(tmp_path / name)
    assert sorted(documents.vocabulary.words[2:]) == ["bär", "café", "öl", "überall"]
    assert documents.classes == ([] if name == "a.txt" else ["x0", "x1"])
    assert [ENCODINGS[encoding] in note for note in documents.notes] == [True]


def test_plain_files_are_not_commented_on_or_copied(tmp_path):
    (tmp_path / "r.csv").write_text(TEXT, encoding="utf-8")
    (tmp_path / "a.csv").write_text(LABELLED, encoding="utf-8")
    assert read_ratings(tmp_path / "r.csv").notes == ()
    assert read_documents(tmp_path / "a.csv").notes == ()


def test_letters_that_come_far_down(tmp_path):
    many = "".join(f"u{n % 7},i{n % 11},{n % 5}\n" for n in range(60_000))
    (tmp_path / "r.csv").write_bytes(("user,item,rating\n" + many + "Jörg,Café,4\n").encode("latin-1"))
    ratings = read_ratings(tmp_path / "r.csv")
    assert ("Jörg" in ratings.user_labels.to_list(), "Café" in ratings.item_labels.to_list()) == (True, True)
    assert "Windows-1252" in ratings.notes[0]
    lines = "".join(f'x{n % 2},"word"\n' for n in range(60_000))
    (tmp_path / "a.csv").write_bytes(("label,text\n" + lines + "x0,Bär\n").encode("latin-1"))
    documents = read_documents(tmp_path / "a.csv")
    assert (documents.vocabulary.words[2:], len(documents)) == (["word", "bär"], 60_001)
    assert "Windows-1252" in documents.notes[0]


def test_what_is_damage_and_what_is_western():
    assert is_western(["Jörg und Café".encode("latin-1")])
    assert not is_western(["Jörg und Café".encode()])
    assert not is_western(["Jörg und Café ".encode() * 5 + b"\xe9"])
    assert not is_western([b"a\xff\xfe", b"plain"])


def test_half_a_character_is_damage(tmp_path):
    (tmp_path / "r.csv").write_bytes(TEXT.encode("utf-16")[:-1])
    with pytest.raises(DataError, match=r"r\.csv is damaged: it starts as utf-16, but truncated data; save it again as UTF-8"):
        read_ratings(tmp_path / "r.csv")


def test_pieces_may_end_anywhere():
    for encoding in ("utf-16", "cp1252", "utf-8-sig"):
        data = "aöß€\n".encode(encoding)
        assert b"".join(as_utf8(Path("file.txt"), (data[n : n + 1] for n in range(len(data))), encoding)) == "aöß€\n".encode()
    escaped = rb'"\"abc","C:\\","a\nb\\\"c"'
    pieces = [escaped[n : n + 1] for n in range(len(escaped))]
    assert b"".join(with_doubled_marks(pieces)) == rb'"""abc","C:\","a\nb\""c"'


def test_escaped_quotation_marks(tmp_path):
    (tmp_path / "r.csv").write_text('user,item,rating\nx,"\\"abc",1\ny,"say \\"hi, there\\" C:\\\\",2\n')
    ratings = read_ratings(tmp_path / "r.csv")
    assert ratings.item_labels.to_list() == ['"abc', 'say "hi, there" C:\\']
    assert 'read as quotes escaped as \\"; if' in ratings.notes[0]
    (tmp_path / "a.csv").write_text('label,text\nx,"\\"abc, d\\" e"\ny,"plain"\n')
    documents = read_documents(tmp_path / "a.csv")
    assert documents.lengths.tolist() == [3, 1]
    assert "quotes escaped" in documents.notes[0]


def test_escaped_quotation_marks_far_down(tmp_path):
    many = "".join(f'"u{n % 7}";"i{n % 11}";"{n % 5}"\n' for n in range(60_000))
    (tmp_path / "r.csv").write_text('"user";"item";"rating"\n' + many + '"x";"a \\"b;c\\" d";"3"\n')
    assert 'a "b;c" d' in read_ratings(tmp_path / "r.csv").item_labels.to_list()
    lines = "".join(f'x{n % 2},"word"\n' for n in range(60_000))
    (tmp_path / "a.csv").write_text("label,text\n" + lines + 'x0,"a \\"b, c\\" d"\n')
    assert read_documents(tmp_path / "a.csv").lengths[-1] == 4


def test_a_backslash_at_the_end_of_a_field_is_none(tmp_path):
    """As in AG-News, where a backslash is a line end."""
    text = 'label,text\nx,"one \\"\ny,"two ""quoted"" \\"\r\nx,"\\""three"""\n'
    assert not is_escaped([text.encode()])
    (tmp_path / "a.csv").write_text(text, newline="")
    documents = read_documents(tmp_path / "a.csv")
    assert (documents.lengths.tolist(), documents.notes) == ([1, 2, 1], ())


def test_commas_in_texts_between_semicolons(tmp_path):
    (tmp_path / "a.csv").write_text('x;"Stocks, up"\ny;"Oil, gas, down"\nx;none\n')
    documents = read_documents(tmp_path / "a.csv")
    assert (documents.classes, documents.lengths.tolist()) == (["x", "y"], [2, 3, 1])
    assert "separator ';'" in documents.notes[0]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_commas(tmp_path, separator):
    lines = ["user,item,rating", "a,x,4#5", "b,y,3", "a,y,0#5"]
    (tmp_path / "r.csv").write_text("\n".join(lines).replace(",", separator).replace("#", ","))
    ratings = read_ratings(tmp_path / "r.csv")
    np.testing.assert_array_equal(ratings.values, np.float32([4.5, 3, 0.5]))
    assert "decimal commas; if" in ratings.notes[0]
    (tmp_path / "bad.csv").write_text("\n".join([*lines, "b,x,good"]).replace(",", separator).replace("#", ","))
    with pytest.raises(DataError, match=r"line 5: the rating is no number: 'b.+x.+good'"):
        read_ratings(tmp_path / "bad.csv")


def test_a_decimal_comma_among_commas(tmp_path):
    (tmp_path / "r.csv").write_text('user,item,rating\na,x,"4,5"\n')
    with pytest.raises(DataError, match=r"line 2: the rating has a decimal comma, write 4\.5 for 4,5"):
        read_ratings(tmp_path / "r.csv")


def test_streams_are_converted_too(tmp_path):
    (tmp_path / "r.csv").write_bytes(TEXT.encode("utf-16"))
    stream = RatingStream(tmp_path / "r.csv", batch_size=2)
    assert [len(batch[0]) for batch in stream] == [2, 1]
    assert stream.users.labels.to_list() == ["Jörg", "Ann"]
    assert "UTF-16" in stream.notes[0]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_text_that_begins_like_a_compressed_file(tmp_path, packed):
    """polars takes "x^…" for zlib's."""

    def written(name, text):
        file = tmp_path / name
        file.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        return file

    ratings = read_ratings(written("r.csv", "x^a,5,3.5\nu,6,2\n"))
    assert ratings.user_labels.to_list() == ["u", "x^a"]
    named = read_documents(written("d.csv", "x^2;label\ntwo words;1\nthree words;2\n"), text="x^2", label="label")
    assert named.classes == ["1", "2"]
    assert len(read_documents(written("d.txt", "x^2 is a square\nand so on\n"))) == 2
    stream = RatingStream(written("s.csv", "x^a,5,3.5\nu,6,2\n"), batch_size=2)
    assert [len(batch[0]) for batch in stream] == [2]
    assert stream.users.labels.to_list() == ["x^a", "u"]
