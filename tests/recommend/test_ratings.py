"""Ratings from files of every kind, and clear words about bad ones."""

import gzip
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
import zstandard

from antembed.data.text_file import DataError
from antembed.recommend.ratings_table import LabelNumbers
from antembed.recommend.read_ratings import read_ratings
from antembed.train.examples import Examples
from antembed.train.examples_kernel import shuffled
from antembed.train.splits import permutation, split

ROWS = [(10, "b", 4.0), (2, "a", 3.5), (10, "a", 1.0)]


def check(ratings, string_users=False):
    assert ratings.user_labels.to_list() == (["10", "2"] if string_users else [2, 10])
    assert ratings.item_labels.to_list() == ["a", "b"]
    assert ratings.users.tolist() == ([0, 1, 0] if string_users else [1, 0, 1])
    assert ratings.items.tolist() == [1, 0, 0]
    np.testing.assert_array_equal(ratings.values, np.float32([4, 3.5, 1]))
    assert ratings.users.dtype == np.int32


def test_movielens_dat(tmp_path):
    file = tmp_path / "ratings.dat"
    file.write_text("".join(f"{u}::{i}::{r}::978300760\n" for u, i, r in ROWS))
    check(read_ratings(file))


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
@pytest.mark.parametrize("header", [True, False])
def test_delimited(tmp_path, separator, header):
    file = tmp_path / "ratings.txt"
    lines = [["userId", "movieId", "rating", "timestamp"]] if header else []
    file.write_text("\n".join(separator.join(map(str, line)) for line in [*lines, *((*row, 5) for row in ROWS)]))
    check(read_ratings(file))


def test_columns_in_any_order_by_name_or_place(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text("when,stars,who,what\n" + "".join(f"1,{r},{u},{i}\n" for u, i, r in ROWS))
    check(read_ratings(file, ["who", "what", "stars"]))
    check(read_ratings(file, ["3", "4", "2"]))
    with pytest.raises(DataError, match=r"which column is the user\? It has: when, stars, who, what"):
        read_ratings(file)
    with pytest.raises(DataError, match="no column 'whom'; it has: when, stars, who, what"):
        read_ratings(file, ["whom", "what", "stars"])
    with pytest.raises(DataError, match="or four with a weight; got 1: who"):
        read_ratings(file, ["who"])
    with pytest.raises(DataError, match="columns must differ, got who, what, who"):
        read_ratings(file, ["who", "what", "3"])


def test_parquet(tmp_path):
    file = tmp_path / "r.parquet"
    pl.DataFrame(ROWS, schema=["user_id", "item_id", "rating"], orient="row").write_parquet(file)
    check(read_ratings(file))


def test_labels_that_look_alike_stay_apart(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text("user,item,rating\n007,1,1\n7,2,2\n")
    assert read_ratings(file).user_labels.to_list() == ["007", "7"]
    pl.DataFrame({"user": [1.5, 1.2], "item": [1, 2], "rating": [1, 2]}).write_parquet(tmp_path / "r.parquet")
    assert read_ratings(tmp_path / "r.parquet").user_labels.to_list() == [1.2, 1.5]


def test_quoted_names(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text('user,item,rating\nx,"a, b",1\ny,c,2\n')
    assert read_ratings(file).item_labels.to_list() == ["a, b", "c"]


HEAD = b"user,item,rating\n1,2,3\n"
DAMAGED = {
    "bad row": (HEAD + b"1,2,good\n", r"line 3: the rating is no number: '1,2,good'; correct it, or .* --on-error skip"),
    "no item": (HEAD + b"1,,3\n", "line 3: no item"),
    "not finite": (HEAD + b"1,4,nan\n", "line 3: the rating is no number"),
    "too many fields": (HEAD + b"1,2,3,4,5\n", "line 3: 5 fields instead of 3"),
    "too few fields": (HEAD + b"1,2\n", "line 3: 2 fields instead of 3"),
    "only separators": (HEAD + b",,\n", "line 3: no user"),
    "bad UTF-8": (HEAD + b"a\xff\xfe,2,3\n", "line 3: byte 2 is not UTF-8"),
    "far down": (HEAD + b"5,6,1\n" * 30_000 + b"7,8,one\n", "line 30003: the rating is no number"),
    "in MovieLens' form": (b"1::2::3::4\n1::2::x::4\n", "line 2: the rating is no number: '1::2::x::4'"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_rows_are_named_or_skipped(tmp_path, name):
    content, text = DAMAGED[name]
    file = tmp_path / "damaged.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=text):
        read_ratings(file)
    ratings = read_ratings(file, on_error="skip")
    assert ratings.skipped == 1
    assert len(ratings) == content.count(b"\n") - content.count(b"user") - 1
    assert text.split(";")[0] in ratings.complaint
    with pytest.raises(ValueError, match="'hope' is none of: stop, skip"):
        read_ratings(file, on_error="hope")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"\n1,2,3\n", "starts with an empty line"),
        (b"user,item,rating\n", "no ratings"),
        (b"user item rating\n1 2 3\n", "no separator found"),
        (b"1 2\n1 3\n", "no separator found"),
        (b"user,rating,when\n1,2,3\n", "which column is the item"),
        (b"PK\x03\x04rubbish\n", "is a zip archive"),
        (b"PAR1rubbish", "could not be read as Parquet"),
        (b"\x1f\x8b\x08\x00rubbish\n", "cannot be decompressed|is truncated"),
        (b"\x28\xb5\x2f\xfdrubbish\n", "cannot be decompressed|is truncated"),
    ],
)
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_files_that_cannot_be_used(tmp_path, content, text, on_error):
    file = tmp_path / "bad.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=text):
        read_ratings(file, on_error=on_error)


PACKERS = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "two members": lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]),
    "two frames": lambda data: b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:1000], data[1000:])),
}


@pytest.mark.parametrize("separator", [",", "::"])
@pytest.mark.parametrize("packer", PACKERS)
def test_packed_files(tmp_path, packer, separator):
    rng = np.random.default_rng(0)
    rows = [(int(u), int(i), int(u + i) % 5) for u, i in rng.integers(0, 300, (200_000, 2))]
    text = "".join(separator.join(map(str, row)) + "\n" for row in rows).encode()
    plain, packed = tmp_path / "plain.csv", tmp_path / "packed.csv"
    plain.write_bytes(text)
    data = PACKERS[packer](text)
    packed.write_bytes(data)
    one, other = read_ratings(plain), read_ratings(packed)
    assert one.digest == other.digest
    assert len(other) == 200_000
    assert one.users[:50].tolist() == [row[0] for row in rows[:50]]
    packed.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="is truncated"):
        read_ratings(packed)
    packed.write_bytes(data[:200] + bytes(50) + data[250:])
    with pytest.raises(DataError, match=r"cannot be decompressed|is truncated|line \d+: "):
        read_ratings(packed)


def test_parquet_rows_without_a_rating(tmp_path):
    file = tmp_path / "r.parquet"
    pl.DataFrame({"user": ["x", None, "y"], "item": [1, 2, 3], "rating": [1.0, 2.0, None]}).write_parquet(file)
    with pytest.raises(DataError, match=r"row 2 is no rating: \(None, 2, 2.0\) \(2 such rows\)"):
        read_ratings(file)
    ratings = read_ratings(file, on_error="skip")
    assert (len(ratings), ratings.skipped) == (1, 2)


def test_empty_lines_are_no_damage(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text("user,item,rating\n1,2,3\n\n2,3,4\n\n")
    ratings = read_ratings(file)
    assert (len(ratings), ratings.skipped) == (2, 0)


def test_labels_that_turn_to_text_far_down(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text("user,item,rating\n" + "10,2,3\n" * 20_000 + "9,2,3\nabc,2,3\n")
    assert read_ratings(file).user_labels.to_list() == ["10", "9", "abc"]


def test_labels_with_leading_zeros_far_down(tmp_path):
    file = tmp_path / "r.csv"
    for odd in ("007", "+7", " 7"):
        file.write_text("user,item,rating\n" + "7,-2,3\n" * 20_000 + f"{odd},-2,3\n")
        assert read_ratings(file).user_labels.to_list() == sorted(["7", odd])
        assert read_ratings(file).item_labels.to_list() == [-2]


QUOTED = {
    "lines inside quotes": ('1,"a\n7,8,5\nb",3\n2,c,4\n3,d,x\n', ["1", "2"], 1),
    "an empty line inside quotes, and one outside": ('1,"good\n\nbook",3\n2,c,4\n\n3,d,5\n', ["1", "2", "3"], 0),
    "a mark that is not closed": ("".join(f"{n},i{n},3\n" for n in range(3000)) + '3000,TV 32" black,4\n3001,e,5\n', None, 1),
}


@pytest.mark.parametrize("name", QUOTED)
def test_records_that_go_on_over_lines(tmp_path, name):
    text, users, bad = QUOTED[name]
    file = tmp_path / "r.csv"
    file.write_text("user,item,rating\n" + text)
    if bad:
        with pytest.raises(DataError, match=r"line 6: the rating is no number|line 3002: a quotation mark is not closed"):
            read_ratings(file)
    ratings = read_ratings(file, on_error="skip")
    assert ratings.skipped == bad
    found = ratings.user_labels.cast(pl.String).to_list()
    assert found == users if users else len(found) == 3001


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("\ufeffuser,item,rating\n10,b,4\n2,a,3.5\n10,a,1e0\n", None),
        ("user,item,rating\r\n10,b,4\r\n2,a,3.5\r\n10,a,1\r\n", None),
        ("id,2020,user,item,rating\n1,0,10,b,4\n1,0,2,a,3.5\n1,0,10,a,1\n", None),
        ("user,item,rating,x,x,\n10,b,4,,,\n2,a,3.5,1,2,3\n10,a,1,,,\n", None),
        ("a::b,c,d\n10,b,4\n2,a,3.5\n10,a,1\n", ["a::b", "c", "d"]),
        ('"user","item","rating"\n"10","b","4"\n"2","a","3.5"\n"10","a","1"\n', None),
    ],
    ids=["byte order mark", "CRLF", "a number among the names", "names twice", "colons in a name", "all quoted"],
)
def test_unusual_files(tmp_path, text, columns):
    file = tmp_path / "r.csv"
    file.write_bytes(text.encode())
    check(read_ratings(file, columns))


@pytest.mark.parametrize("number", ["4 ", "1_0", "1e39", "²", "0x1", ""])
def test_what_is_no_number(tmp_path, number):
    file = tmp_path / "r.csv"
    file.write_text(f"user,item,rating\n1,2,3\n1,2,{number}\n")
    with pytest.raises(DataError, match=r"line 3: (the rating is no number|no rating)"):
        read_ratings(file)


def test_rows_may_lack_what_is_not_needed(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text("user,item,rating,comment\n1,2,3\n2,3,4,good\n3,4,x,bad\n")
    ratings = read_ratings(file, on_error="skip")
    assert (len(ratings), ratings.skipped) == (2, 1)


def test_hashes_as_labels(tmp_path):
    file = tmp_path / "r.parquet"
    labels = pl.Series([2**64 - 1, 5, 2**63], dtype=pl.UInt64)
    pl.DataFrame({"user": labels, "item": [1, 2, 3], "rating": [1, 2, 3]}).write_parquet(file)
    ratings = read_ratings(file)
    assert ratings.user_labels.to_list() == [5, 2**63, 2**64 - 1]
    assert ratings.users.tolist() == [2, 0, 1]


def test_weights(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text("user,item,rating,trust\n1,2,3,0.5\n2,3,4,2\n")
    ratings = read_ratings(file, ["user", "item", "rating", "trust"])
    np.testing.assert_array_equal(ratings.weights, np.float32([0.5, 2]))
    assert len(ratings.columns) == 4
    assert ratings.digest != read_ratings(file).digest
    file.write_text("user,item,rating,trust\n1,2,3,-0.5\n2,3,4,2\n")
    with pytest.raises(DataError, match=r"weights must be ≥ 0 and not all 0; the smallest is -0\.5"):
        read_ratings(file, ["user", "item", "rating", "trust"])


class TestCache:
    @pytest.fixture(autouse=True)
    def _cache_all(self, monkeypatch):
        monkeypatch.setattr("antembed.recommend.read_ratings.CACHED_FROM", 0)

    def file(self, folder, last="x,9,1.5"):
        file = folder / "r.csv"
        file.write_text("user,item,rating\n" + "".join(f"u{n % 37},{n % 11},{n % 5}\n" for n in range(5000)) + last)
        return file

    def test_it_gives_the_same_without_reading_again(self, tmp_path, monkeypatch):
        file = self.file(tmp_path)
        plain, first = read_ratings(file), read_ratings(file, cache=tmp_path / "cache")
        monkeypatch.setattr(pl, "scan_csv", None)
        again = read_ratings(file, cache=tmp_path / "cache")
        assert plain.digest == first.digest == again.digest
        assert isinstance(again.users, np.memmap)
        assert plain.user_labels.to_list() == again.user_labels.to_list()
        assert again.user_labels.dtype == pl.String
        with pytest.raises(ValueError, match="read-only"):
            again.users[0] = 1

    def test_other_contents_are_another_entry(self, tmp_path):
        one = read_ratings(self.file(tmp_path), cache=tmp_path / "cache")
        two = read_ratings(self.file(tmp_path, "x,9,2.5"), cache=tmp_path / "cache")
        three = read_ratings(self.file(tmp_path), ["1", "2", "3"], cache=tmp_path / "cache")
        assert one.digest == three.digest != two.digest
        assert len(list((tmp_path / "cache").iterdir())) == 3

    def test_skipped_rows_are_remembered(self, tmp_path):
        for _ in range(2):
            ratings = read_ratings(self.file(tmp_path, "x,9,bad"), on_error="skip", cache=tmp_path / "cache")
            assert (len(ratings), ratings.skipped) == (5000, 1)
            assert "line 5002" in ratings.complaint

    def test_half_an_entry_is_replaced(self, tmp_path):
        file = self.file(tmp_path)
        read_ratings(file, cache=tmp_path / "cache")
        (entry,) = (tmp_path / "cache").iterdir()
        (entry / "about.json").unlink()
        assert isinstance(read_ratings(file, cache=tmp_path / "cache").users, np.memmap)
        assert (entry / "about.json").exists()

    def test_a_cache_that_cannot_be_written(self, tmp_path):
        (tmp_path / "cache").write_text("a file")
        with pytest.raises(DataError, match="set ANTEMBED_CACHE to another folder"):
            read_ratings(self.file(tmp_path), cache=tmp_path / "cache")

    def test_a_failure_leaves_nothing(self, tmp_path):
        with pytest.raises(DataError, match="line 5002"):
            read_ratings(self.file(tmp_path, "x,9,bad"), cache=tmp_path / "cache")
        assert list((tmp_path / "cache").iterdir()) == []

    def test_what_a_killed_process_left_is_swept(self, tmp_path):
        old, young = tmp_path / "cache" / ".partial-old", tmp_path / "cache" / ".partial-young"
        for left in (old, young):
            left.mkdir(parents=True)
        os.utime(old, (0, 0))
        read_ratings(self.file(tmp_path), cache=tmp_path / "cache")
        assert (old.exists(), young.exists()) == (False, True)

    def test_two_that_fill_one_entry_do_not_disturb_each_other(self, tmp_path):
        file = self.file(tmp_path)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: read_ratings(file, cache=tmp_path / "cache"), range(8)))
        assert len({ratings.digest for ratings in found}) == 1
        assert len(list((tmp_path / "cache").iterdir())) == 1


def test_labels_are_numbered_in_the_order_of_their_appearance():
    rng = np.random.default_rng(0)
    for kind in (pl.Int64, pl.String, pl.UInt64):
        numbering, seen = LabelNumbers(), {}
        for n in (1, 10, 200_000, 5):
            labels = pl.Series(rng.integers(0, 2**62, n) if n < 1000 else rng.integers(0, 40_000, n)).cast(kind)
            assert numbering.number(labels).tolist() == [seen.setdefault(label, len(seen)) for label in labels]
            assert numbering.labels.to_list() == list(seen)
        assert numbering.labels.dtype == kind


@pytest.mark.parametrize("n", [0, 1, 5, 1000, 300_000])
def test_a_shuffle_loses_nothing(n):
    values = np.arange(n, dtype=np.int32) * 3
    one, two = shuffled(values, 1, 1, threads=1), shuffled(values, 1, 1, threads=2)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(np.sort(one), values)
    if n > 10:
        assert abs(np.corrcoef(one, values)[0, 1]) < 4 / n**0.5
        assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 4 / n**0.5
        assert (one != shuffled(values, 1, 2)).mean() > 0.9


def test_all_orders_are_equally_likely(monkeypatch):
    """24 orders of 4 numbers, in buckets of 2: 400 of each are expected, χ² with 23 degrees of freedom."""
    monkeypatch.setattr("antembed.train.examples_kernel.BUCKET", 2)
    orders = Counter(tuple(shuffled(np.arange(4), 0, epoch).tolist()) for epoch in range(9600))
    assert len(orders) == 24
    assert sum((count - 400) ** 2 / 400 for count in orders.values()) < 50


def test_an_epoch_is_a_permutation_that_can_be_had_again():
    examples = Examples((np.arange(1000) * 2, np.arange(1000.0)), np.arange(5, 905))
    ids, values = examples.shuffled(3, 1)[:]
    assert sorted(ids.tolist()) == list(range(10, 1810, 2))
    assert (ids == 2 * values).all()
    assert ids.tolist() == examples.shuffled(3, 1)[:][0].tolist() != examples.shuffled(3, 2)[:][0].tolist()
    np.testing.assert_array_equal(permutation(1000, 4), np.random.default_rng(4).permutation(1000))
    assert [len(batch[0]) for batch in examples.batches(400)] == [400, 400, 100]


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="is no file"):
        read_ratings(tmp_path / "none.csv")


def test_splits_are_seeded_and_disjoint():
    cut = split(1000, "80/10/10", 7)
    assert [len(cut[name]) for name in ("train", "validation", "test")] == [800, 100, 100]
    assert np.array_equal(np.sort(np.concatenate(list(cut.values()))), np.arange(1000))
    assert np.array_equal(cut["test"], split(1000, "80/10/10", 7)["test"])
    assert not np.array_equal(cut["test"], split(1000, "80/10/10", 8)["test"])
    assert [len(part) for part in split(1000, "90/10", 7).values()] == [900, 0, 100]
    with pytest.raises(ValueError, match="unknown split 'guess'; there are: 80/10/10, 90/10"):
        split(10, "guess", 0)
    for n in (2, 5):
        with pytest.raises(ValueError, match=f"{n} examples are too few"):
            split(n, "80/10/10", 0)


def test_movielens_1m_itself(shared_data):
    ratings = read_ratings(shared_data / "ml-1m" / "ratings.dat")
    assert (len(ratings), len(ratings.user_labels), len(ratings.item_labels)) == (1_000_209, 6040, 3706)


def test_blank_lines_are_no_reason_to_look_at_every_line(tmp_path, monkeypatch):
    rows = [f"u{n % 7},{n % 5},{n % 3}" for n in range(40)]
    (tmp_path / "plain.csv").write_text("user,item,rating\n" + "\n".join(rows))
    (tmp_path / "blank.csv").write_text("user,item,rating\n\n" + "\n \n\r\n".join(rows) + "\n\n")
    monkeypatch.setattr("antembed.data.delimited.bad_lines", None)
    plain, blank = read_ratings(tmp_path / "plain.csv"), read_ratings(tmp_path / "blank.csv")
    assert (plain.users == blank.users).all()
    assert (plain.values == blank.values).all()
    assert blank.user_labels.equals(plain.user_labels)


def test_a_blank_line_between_quotation_marks_is_text(tmp_path):
    (tmp_path / "r.csv").write_text('user,item,rating\n"a\n\nb",1,2\n\nc,1,3\n')
    assert sorted(read_ratings(tmp_path / "r.csv").user_labels) == ["a\n\nb", "c"]


JSON_ROWS = [
    '{"user": 10, "item": "b", "rating": 4.0, "more": {"a": [1, 2]}}',
    '{"rating": 3.5, "user": 2, "item": "a"}',
    "",
    '{"user": "10", "item": "a", "rating": "1"}',
]


@pytest.mark.parametrize(("name", "pack"), [("r.jsonl", bytes), ("r.txt", bytes), ("r.jsonl.gz", PACKERS["gzip"]),
                                            ("r.ndjson.zst", PACKERS["zstd"])])  # fmt: skip
def test_json_lines(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack("\n".join(JSON_ROWS).encode()))
    check(read_ratings(tmp_path / name))
    assert read_ratings(tmp_path / name, ["item", "user"]).implicit


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"user": 3, "item": "b"}', r"row 4 is no rating: \('3', 'b', None\) \(1 such rows\); .*--on-error skip"),
        ('{"user": "", "item": "b", "rating": 1}', "row 4 is no rating"),
        ('{"user": "x\\ud800", "item": "b", "rating": 1}', "row 4 is no rating"),
        ('{"user": 3, "item": ', "line 5: no JSON .*; correct it, one object per line"),
    ],
)
def test_json_lines_that_are_no_ratings(tmp_path, line, told):
    (tmp_path / "r.jsonl").write_text("\n".join([*JSON_ROWS, line]))
    with pytest.raises(DataError, match=told):
        read_ratings(tmp_path / "r.jsonl")
    if "on-error" in told:
        skipped = read_ratings(tmp_path / "r.jsonl", on_error="skip")
        check(skipped)
        assert skipped.skipped == 1


def test_json_lines_have_the_same_names_of_columns(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"who": 1, "what": 2}\n')
    with pytest.raises(DataError, match=r"which column is the user\? It has: who, what; pass --columns"):
        read_ratings(tmp_path / "r.jsonl")


NAMES = [
    "user,item,rating",
    "userId,movieId,rating",
    "User-ID,ISBN,Book-Rating",
    "customer_no,SKU,stars",
    "Kunden-Nr.,Artikelnummer,Sterne",
    "Käufer,Produkt,Bewertung",
    "client,article,note",
    "id_utilisateur,id_produit,étoiles",
    "usuario,código de producto,puntuación",
    "cliente,artículo,calificación",
    "utente,codice_prodotto,voto",
]


@pytest.mark.parametrize("names", NAMES)
def test_usual_names_of_columns_in_five_languages(tmp_path, names):
    file = tmp_path / "r.csv"
    file.write_text("when," + names + ",remark\n" + "".join(f"x,{u},{i},{r},fine\n" for u, i, r in ROWS))
    ratings = read_ratings(file)
    check(ratings)
    user, item, rating = names.split(",")
    said = f"{file}: user from {user!r}, item from {item!r}, rating from {rating!r}; others with --columns USER,ITEM,RATING"
    assert ratings.notes == (() if names in NAMES[:2] else (said,))
    assert read_ratings(file, columns=[user, item, rating]).notes == ()


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        (["user", "user_id", "item", "rating"], "which column is the user, user or user_id"),
        (["user", "sku", "product_id", "rating"], "which column is the item, sku or product_id"),
        (["user", "item", "rating", "score"], "which column is the rating, rating or score"),
        (["user", "item", "value", "qty"], "which column is the rating, value or qty"),
    ],
)
def test_two_columns_for_one_role_are_asked_about(tmp_path, names, asked):
    (tmp_path / "r.csv").write_text(",".join(names) + "\n1,2,3,4\n")
    said = rf"{asked}\? It has: {', '.join(names)}; pass --columns USER,ITEM,RATING .*or USER,ITEM for events"
    with pytest.raises(DataError, match=said):
        read_ratings(tmp_path / "r.csv")
    assert len(read_ratings(tmp_path / "r.csv", ["1", "3", "4"])) == 1


def test_a_usual_word_in_a_row_is_no_header(tmp_path):
    (tmp_path / "r.csv").write_text("ann,book,3\nbob,film,4\n")
    assert len(read_ratings(tmp_path / "r.csv")) == 2
    (tmp_path / "e.csv").write_text("ann,book\nbob,film\n")
    assert len(read_ratings(tmp_path / "e.csv")) == 2
