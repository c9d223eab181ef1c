"""Labelled text → ids: layouts, bad files, vocabularies, and the arrays that models take."""

import gzip
import json

import numpy as np
import polars as pl
import pytest
import zstandard

from antembed.classify.documents import Documents, documents_of, in_order, read_documents
from antembed.data.text_file import DataError
from antembed.data.vocabulary import Vocabulary
from antembed.train.splits import shares

ROWS = [("3", "Wall St.", "Stocks, up"), ("10", "", 'He said "no"\nagain'), ("3", "Oil's", "up up")]
WORDS = [["wall", "st", "stocks", "up"], ["he", "said", "no", "again"], ["oil", "'s", "up", "up"]]


def words(documents: Documents) -> list[list[str]]:
    return [[documents.vocabulary.words[id] for id in documents[n]] for n in range(len(documents))]


def quoted(separator: str, rows: list) -> str:
    return "".join(separator.join('"' + field.replace('"', '""') + '"' for field in row) + "\n" for row in rows)


def plain(rows: list) -> str:
    return "".join("\t".join(row).replace("\n", " ") + "\n" for row in rows)


FILES = {
    "bare.csv": quoted(",", ROWS),
    "bare.data": quoted(",", ROWS),
    "header.csv": "Class Index,Title,Description\n" + quoted(",", ROWS),
    "other.csv": "id,text,more,stars\n" + quoted(",", [("7", f"{t} {d}", "x", c) for c, t, d in ROWS]),
    "semicolons.csv": "category;title;body\n" + quoted(";", ROWS),
    "bare.tsv": plain(ROWS),
    "header.tsv": plain([("label", "title", "text"), *ROWS]),
    "open.tsv": plain([("label", "text"), ("3", 'Wall St. "Stocks up'), ("10", 'He said "no again'), ("3", "Oil's up up")]),
    "windows.csv": "\ufeff" + quoted(",", ROWS).replace('"\n', '"\r\n'),
    "empty lines.csv": quoted(",", ROWS).replace('"\n"', '"\n\n"'),
    "objects.jsonl": "".join(json.dumps({"label": int(c), "n": 1, "title": t, "text": d}) + "\n" for c, t, d in ROWS),
}


@pytest.mark.parametrize("name", FILES)
def test_layouts_are_found(tmp_path, name):
    (tmp_path / name).write_text(FILES[name], encoding="utf-8", newline="")
    documents = read_documents(tmp_path / name)
    assert words(documents) == WORDS
    assert documents.classes == ["3", "10"]
    assert documents.labels.tolist() == [0, 1, 0]
    assert (documents.tokens.dtype, documents.starts.dtype, documents.labels.dtype) == (np.int32, np.int64, np.int32)
    assert documents.complaint == ""


def test_parquet_and_packed_files(tmp_path):
    frame = pl.DataFrame({"topic": [3, 10, 3], "title": [t for _, t, _ in ROWS], "text": [d for _, _, d in ROWS]})
    frame.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(FILES["bare.csv"].encode()))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(FILES["objects.jsonl"].encode()))
    for name in ("a.parquet", "a.csv.gz", "a.jsonl.zst"):
        documents = read_documents(tmp_path / name)
        assert words(documents) == WORDS, name
        assert documents.classes == ["3", "10"]


def test_columns_are_chosen_by_name_or_number(tmp_path):
    (tmp_path / "a.csv").write_text("who,what,where\nann,cats purr,home\nbob,dogs bark,yard\n")
    by_name = read_documents(tmp_path / "a.csv", text="what", label="where")
    assert (words(by_name), by_name.classes) == ([["cats", "purr"], ["dogs", "bark"]], ["home", "yard"])
    (tmp_path / "b.csv").write_text("1,ann,cats purr\n2,bob,dogs bark\n")
    by_number = read_documents(tmp_path / "b.csv", text=3, label="2")
    assert (words(by_number), by_number.classes) == (words(by_name), ["ann", "bob"])
    both = read_documents(tmp_path / "b.csv", text=["2", 3])
    assert (words(both)[0], both.classes) == (["ann", "cats", "purr"], ["1", "2"])


@pytest.mark.parametrize(
    ("contents", "options", "told"),
    [
        (b"", {}, r"a.csv is empty \(0 bytes\)"),
        (b"\n1,x\n", {}, "starts with an empty line"),
        (b"label,text\n", {}, "has no documents: 0 rows"),
        (b"1,a\n1,b\n", {}, r"has 1 classes \(1\) in 2 documents, 2 are needed"),
        (b"label,text\n,a\n,b\n", {}, r"has 0 classes \(\) in 2 documents"),
        (b"1,a\n2,b\n", {"text": 7}, "has no column 7 for the text; it has 2: column_1, column_2"),
        (b"label,text\n1,a\n", {"label": "mood"}, "has no column 'mood' for the label; it has 2: label, text"),
        (b"label,text\n1,a\n", {"label": "text", "text": "text"}, "'text' is chosen as text and as label"),
        (b"label,x,y\n1,a,b\n", {}, "which column is the text.*: label, x, y; pass text="),
        (b'1,a\n2,"b\nc"\n3,\xff\n', {}, "line 4: byte 3 is not UTF-8"),
        (b"1,a\n2,b,c\n", {}, "line 2: 3 fields instead of 2: '2,b,c'; quote texts that contain the separator"),
        (b'1,a\n2,"b\n', {}, "line 2: a quotation mark is not closed"),
        (b'{"label": 1, "text": "a"}\n{"label": 2\n', {}, r"line 2: no JSON"),
        (b'{"label": 1, "text": "a"}\n{"text": "\xff"}\n', {}, "line 2: byte 11 is not UTF-8"),
        (b"PK\x03\x04....", {}, "is a zip archive"),
        (b"PAR1....", {}, "could not be read as Parquet"),
    ],
)
def test_bad_files_are_told_where_and_what(tmp_path, contents, options, told):
    (tmp_path / "a.csv").write_bytes(contents)
    with pytest.raises(DataError, match=told):
        read_documents(tmp_path / "a.csv", **options)


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="is no file; give text as"):
        read_documents(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("options", "told"),
    [({"min_count": 0}, "min_count must be ≥ 1, got 0"), ({"max_vocab": 2}, "max_vocab must be > 2.*got 2"),
     ({"length": -1}, "length must be ≥ 1.*got -1")],
)  # fmt: skip
def test_bad_settings(options, told):
    with pytest.raises(ValueError, match=told):
        documents_of(["a"], **options)


def test_a_line_of_ten_megabytes(tmp_path):
    many = "word " * 2_000_000
    (tmp_path / "a.csv").write_text(f'1,"{many}"\n2,short\n')
    assert read_documents(tmp_path / "a.csv", length=100).lengths.tolist() == [100, 1]
    assert read_documents(tmp_path / "a.csv").lengths.tolist() == [2_000_000, 1]


def test_labels_that_training_has_not_seen(tmp_path):
    (tmp_path / "a.csv").write_text("1,a\n5,b\n,c\n2,d\n")
    known = documents_of(["a", "d"], ["1", "2"])
    documents = read_documents(tmp_path / "a.csv", vocabulary=known.vocabulary, classes=known.classes)
    assert documents.labels.tolist() == [0, -1, -1, 1]
    assert documents.complaint.endswith(
        "a.csv: 2 of 4 documents have none of the 2 classes (for example '5'); their label is −1"
    )
    assert documents.vocabulary is known.vocabulary
    assert documents.tokens.tolist() == [2, 1, 1, 3]


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
def test_text_without_labels(tmp_path, name):
    contents = {"a.txt": 'text\nhe said "no\n\nlabel, none\n', "a.csv": 'text\n"he said ""no"\n\n"label, none"\n'}
    (tmp_path / name).write_text(contents[name])
    known = documents_of(["he said", "none"], ["x", "y"])
    documents = read_documents(tmp_path / name, vocabulary=known.vocabulary, classes=known.classes)
    assert documents.labels.tolist() == [-1] * len(documents)
    assert documents.lengths.tolist() == ([1, 3, 0, 2] if name == "a.txt" else [3, 0, 2])
    assert (documents.classes, documents.complaint) == (["x", "y"], "")


def test_missing_texts_have_no_words(tmp_path):
    pl.DataFrame({"label": [1, 2, 2], "text": [None, "a", None]}).write_parquet(tmp_path / "a.parquet")
    assert read_documents(tmp_path / "a.parquet").lengths.tolist() == [0, 1, 0]
    assert documents_of([None, "a", ""], [1, 2, 2]).lengths.tolist() == [0, 1, 0]
    assert documents_of([None, ""]).vocabulary.words == ["<pad>", "<unk>"]


@pytest.mark.parametrize(
    ("texts", "labels", "told"),
    [([], [], "has no documents"), (["a", 3], [1, 2], "text 1 is of type int"),
     (["a"], [1, 2], "there are 1 texts and 2 labels; give equally many"),
     (["a", "b"], [1], "there are 2 texts and 1 labels; give equally many"),
     (["a", "x\ud800"], None, r"text 1 has a lone surrogate, '\\ud800', as character 2 of 'x\\ud800'.* replace it: text"),
     (["a", "b", "c"], ["x", "y", "\udc80"], "label 2 has a lone surrogate, .* as character 1 of .*; read its source")],
)  # fmt: skip
def test_bad_texts_in_memory(texts, labels, told):
    with pytest.raises(DataError, match=told):
        documents_of(texts, labels)


def test_words_by_falling_count_then_by_the_alphabet():
    documents = documents_of(["b b b c c a", "a d é c", "b"])
    vocabulary = documents.vocabulary
    assert vocabulary.words == ["<pad>", "<unk>", "b", "c", "a", "d", "é"]
    assert vocabulary.counts.tolist() == [0, 0, 4, 3, 2, 1, 1]
    assert vocabulary.document_counts.tolist() == [0, 0, 2, 2, 2, 1, 1]
    assert vocabulary.documents == 3
    assert vocabulary.ids(["c", "nothing", "é"]).tolist() == [3, 1, 6]


def test_rare_words_are_unknown():
    texts = ["b b b c c a", "a d e c", "b"]
    often = documents_of(texts, min_count=2).vocabulary
    assert (often.words[2:], often.counts.tolist(), often.document_counts.tolist()) == (
        ["b", "c", "a"], [0, 2, 4, 3, 2], [0, 1, 2, 2, 2])  # fmt: skip
    few = documents_of(texts, max_vocab=4)
    assert few.vocabulary.words == ["<pad>", "<unk>", "b", "c"]
    assert few.tokens.tolist() == [2, 2, 2, 3, 3, 1, 1, 1, 1, 3, 2]


def test_ids_do_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in rng.zipf(1.3, 30) % 5000) for _ in range(2000)]
    one, back = documents_of(texts), documents_of(texts[::-1])
    assert one.vocabulary.words == back.vocabulary.words
    assert (one.take(np.arange(2000)[::-1]).tokens == back.tokens).all()
    again = documents_of(texts, vocabulary=one.vocabulary)
    assert (again.tokens == one.tokens).all()


def test_vocabulary_is_written_and_read(tmp_path):
    vocabulary = documents_of(["b b a", "日 b"]).vocabulary
    vocabulary.write(tmp_path / "v.parquet")
    again = Vocabulary.read(tmp_path / "v.parquet")
    assert (again.words, again.documents) == (vocabulary.words, 2)
    assert (again.counts == vocabulary.counts).all()
    assert (again.document_counts == vocabulary.document_counts).all()
    pl.DataFrame({"word": ["a"]}).write_parquet(tmp_path / "no.parquet")
    with pytest.raises(DataError, match=r"no.parquet is no vocabulary written by antembed"):
        Vocabulary.read(tmp_path / "no.parquet")


def test_some_documents_are_taken():
    documents = documents_of(["a b c", "", "d"], [1, 2, 1])
    taken = documents.take(np.array([2, 0, 2]))
    assert words(taken) == [["d"], ["a", "b", "c"], ["d"]]
    assert taken.labels.tolist() == [0, 0, 0]
    assert taken.starts.tolist() == [0, 1, 4, 5]
    with pytest.raises(IndexError, match="rows -1 to 3 are not all within the 3 documents"):
        documents.take([-1, 3])


def test_shares_are_cut_by_seed_and_class():
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    parts = shares(160, (0.8, 0.1, 0.1), 3, labels)
    assert [np.bincount(labels[part]).tolist() for part in parts] == [[80, 40, 8], [10, 5, 1], [10, 5, 1]]
    assert sorted(np.concatenate(parts)) == list(range(160))
    assert not (np.diff(parts[0]) > 0).all()
    assert all((a == b).all() for a, b in zip(parts, shares(160, (0.8, 0.1, 0.1), 3, labels), strict=True))
    assert [len(part) for part in shares(10, (0.9, 0.1), 0)] == [9, 1]
    with pytest.raises(ValueError, match=r"sum to 1, got \(0.5, 0.4\), which sum to 0.9"):
        shares(10, (0.5, 0.4), 0)
    with pytest.raises(ValueError, match="3 labels were given for 10 examples"):
        shares(10, (0.5, 0.5), 0, labels[:3])


def test_classes_in_order():
    assert in_order(["10", "9", "1"]) == ["1", "9", "10"]
    assert in_order(["10", "9", "b"]) == ["10", "9", "b"]


@pytest.mark.shared_data
def test_ag_news_itself(shared_data):
    train = read_documents(shared_data / "ag-news" / "train.csv")
    test = read_documents(shared_data / "ag-news" / "test.csv", vocabulary=train.vocabulary, classes=train.classes)
    assert (len(train), len(test), train.classes) == (51066, 7600, ["1", "2", "3", "4"])
    assert np.bincount(test.labels).tolist() == [1900] * 4
    assert (test.tokens == 1).mean() < 0.02


ARTICLES = "".join(f'{n},{("Sport", "Politik")[n % 2]},"Der {n}. Text"\n' for n in range(1, 41))


def test_a_running_number_is_no_class(tmp_path):
    (tmp_path / "a.csv").write_text("nr,rubrik,wortlaut\n" + ARTICLES)
    asked = r"which column is the class\? It has: nr, rubrik, wortlaut; pass label=NAME \(--label NAME\), and text=NAME"
    with pytest.raises(DataError, match=asked):
        read_documents(tmp_path / "a.csv")
    documents = read_documents(tmp_path / "a.csv", label="rubrik", text="wortlaut")
    assert (documents.classes, len(documents)) == (["Politik", "Sport"], 40)
    (tmp_path / "b.csv").write_text(ARTICLES)
    refused = r"b.csv has 40 classes in 40 documents, as '1': they number the documents; check label= \(--label\)"
    with pytest.raises(DataError, match=refused):
        read_documents(tmp_path / "b.csv")
    assert read_documents(tmp_path / "b.csv", label="2", text="3").classes == documents.classes
    assert read_documents(tmp_path / "b.csv", label="", text="3").classes == []


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([f"title {n}" for n in range(30)], "has 30 classes in 30 documents, as 'title 0': too many to learn from"),
        ([n % 16 for n in range(30)], "has 16 classes in 30 documents, as '0': too many to learn from"),
        (
            [n % 10 / 3 for n in range(60)],
            r"has 10 classes in 60 documents, as '0\.0': they are quantities",
        ),
        ([*range(25), None, None], "has 25 classes in 25 documents, as '0': they number the documents"),
    ],
)
def test_labels_that_are_no_classes(labels, told):
    with pytest.raises(DataError, match=told):
        documents_of(["a b"] * len(labels), labels)


def test_many_classes_are_no_error():
    assert len(documents_of(["a"] * 30, [n % 15 for n in range(30)]).classes) == 15
    assert len(documents_of(["a"] * 100, [n % 10 / 2 for n in range(100)]).classes) == 10
    assert len(documents_of(["a"] * 19, list(range(19))).classes) == 19
    assert (documents_of(["a"] * 30, list(range(30)), classes=["1", "2"]).labels >= 0).sum() == 2


def test_what_may_be_the_class_is_noted(tmp_path):
    (tmp_path / "a.csv").write_text("id,text,mood\n1,good day,happy\n2,bad day,sad\n")
    (note,) = read_documents(tmp_path / "a.csv").notes
    assert note.endswith("a.csv: which column is the class? It has: id, text, mood; pass label=NAME (--label NAME)")


def test_documents_that_are_cut_are_counted():
    texts = ["w " * n for n in range(1, 101)]
    documents = documents_of(texts, length=90)
    assert documents.truncated == (
        "10 % of the documents are longer than --max-length 90 words and are cut; 95 % have at most 95"
    )
    assert documents.lengths.max() == 90
    for length in (99, 100, None, 0):
        whole = documents_of(texts, length=length)
        assert (whole.truncated, whole.lengths.max()) == ("", length or 100)


def labelled(labels: list) -> Documents:
    return documents_of(["some words"] * len(labels), labels)


@pytest.mark.parametrize(
    ("labels", "several", "example"),
    [
        (["a", "b", "a|b", "b|a"] * 5, 10, "a|b"),
        (["a", "b", "c"] * 10 + ["a; c"] * 2, 2, "a; c"),
        ([f"{a}|{b}" if n % 3 else f"{a}|{b}|z" for n in range(90) for a, b in [("pqrs"[n % 4], "tuvwx"[n % 5])]], 90, None),
        (["['a', 'b']", '["a"]', '["b"]', '["b", "c"]'] * 5, 10, "['a', 'b']"),
    ],
)
def test_several_labels_a_document_are_refused_with_their_number(labels, several, example):
    with pytest.raises(
        DataError, match=f"{several} of {len(labels)} documents have several labels, as .* keep one label"
    ) as told:
        labelled(labels)
    assert example is None or repr(example) in str(told.value)


@pytest.mark.parametrize(
    "names",
    [
        ["sports|games", "world", "business"],  # one name, and its parts are no classes
        ["sport|football", "sport|tennis", "sport", "news|uk", "news|us", "news"],  # paths
        ["us|politics", "us|sport", "uk|politics", "uk|sport"],
        ["science, technology", "arts", "3,5"],
        ["3", "4", "5", "3,5", "4,5"],  # decimal commas
        ['["a"]', '["b, c"]', "[c]"],
        ["|", "a|", "a"],
    ],
)
def test_separators_in_ordinary_names_are_a_part_of_them(names):
    assert sorted(labelled(names * 10).classes) == sorted(names)


def test_lists_of_labels_in_files_are_refused(tmp_path):
    rows = [{"label": ["a", "b"] if n % 3 else ["c"], "text": "some words"} for n in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pl.DataFrame(rows).write_parquet(tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(DataError, match=rf"{name}: 20 of 30 documents have several labels, as '\[\"a\", \"b\"\]'"):
            read_documents(tmp_path / name)


def test_a_lone_surrogate_in_a_json_label_is_refused(tmp_path):
    rows = [{"label": "\ud800x" if n == 7 else "ab"[n % 2], "text": "some words"} for n in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"label 7 is '\\x00x': a NUL or a lone surrogate is no text; correct it, or remove"):
        read_documents(tmp_path / "a.jsonl")


def test_the_columns_that_were_taken_are_kept(tmp_path):
    (tmp_path / "a.csv").write_text("id,title,text,topic\n" + "1,x,some words,a\n2,y,more,b\n")
    documents = read_documents(tmp_path / "a.csv")
    assert documents.file_columns == documents.take([0]).file_columns == {"text": ["title", "text"], "label": "topic"}
    (tmp_path / "b.csv").write_text("a,some words\nb,more\n")
    assert read_documents(tmp_path / "b.csv").file_columns == {"text": ["column_2"], "label": "column_1"}
    assert documents_of(["a"], [1], classes=["1"]).file_columns is None


@pytest.mark.parametrize("header", ["Kategorie,Inhalt", "Klasse,Text", "catégorie,titre", "clase,texto", "etichetta,testo"])
def test_headers_in_other_languages_are_no_documents(tmp_path, header):
    file = tmp_path / "news.csv"
    file.write_text(header + "\n" + "".join(f"{'ab'[n % 2]},some words number {n}\n" for n in range(20)))
    assert read_documents(file).classes == ["a", "b"]
