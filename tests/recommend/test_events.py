"""Implicit feedback: events from files without ratings, counts, sequences; their times, and the cache."""

import numpy as np
import polars as pl
import pytest

from antembed.data.text_file import DataError
from antembed.recommend.column_roles import choose_columns
from antembed.recommend.in_memory import ratings_from, ratings_of
from antembed.recommend.read_ratings import read_ratings
from antembed.recommend.read_stream import RatingStream

EVENTS = [("ann", "x", 3e8), ("bob", "y", 1e9), ("ann", "x", 2e8), ("ann", "y", 5e8)]


def table(ratings):
    """user, item, count and time of each pair."""
    assert ratings.implicit
    assert ratings.values.tolist() == [1] * len(ratings)
    assert (ratings.values.dtype, ratings.weights.dtype, ratings.times.dtype) == (np.float32, np.float32, np.float64)
    users, items = ratings.user_labels.gather(ratings.users), ratings.item_labels.gather(ratings.items)
    return list(zip(users, items, ratings.weights.tolist(), ratings.times.tolist(), strict=True))


IN_ORDER = [("ann", "x", 2, 2), ("bob", "y", 1, 1), ("ann", "y", 1, 3)]
BY_TIME = [("ann", "x", 2, 3e8), ("bob", "y", 1, 1e9), ("ann", "y", 1, 5e8)]
PAIRS = "".join(f"{u},{i}\n" for u, i, _ in EVENTS)
TIMED = "".join(f"{u},{i},{t:.0f}\n" for u, i, t in EVENTS)
FILES = {
    "two columns": (PAIRS, None, IN_ORDER),
    "two names": ("userId,movieId\n" + PAIRS, None, IN_ORDER),
    "names that are given": ("who,what\n" + PAIRS, ["who", "what"], IN_ORDER),
    "a time by its name": ("user,item,timestamp\n" + TIMED, None, BY_TIME),
    "a time in front": ("date,user,item\n" + "".join(f"{t:.0f},{u},{i}\n" for u, i, t in EVENTS), None, BY_TIME),
    "numbers of columns": (TIMED, ["1", "2"], BY_TIME),
    "a rating that is left out": (
        "user,item,rating\n" + "".join(f"{u},{i},3\n" for u, i, _ in EVENTS), ["user", "item"], IN_ORDER),
    "tabs": (PAIRS.replace(",", "\t"), None, IN_ORDER),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_events(tmp_path, name):
    text, columns, expected = FILES[name]
    (tmp_path / "e.csv").write_text(text)
    ratings = read_ratings(tmp_path / "e.csv", columns)
    assert table(ratings) == expected
    assert "every row is an event (implicit feedback)" in ratings.notes[-1]


def test_events_of_numbers(tmp_path):
    (tmp_path / "e.csv").write_text("1,2\n1,3\n10,2\n1,2\n")
    assert table(read_ratings(tmp_path / "e.csv")) == [(1, 2, 2, 3), (1, 3, 1, 1), (10, 2, 1, 2)]
    assert table(read_ratings(tmp_path / "e.csv", ["1", "2"])) == [(1, 2, 2, 3), (1, 3, 1, 1), (10, 2, 1, 2)]


def test_unknown_names_above_numbers_are_no_event(tmp_path):
    (tmp_path / "e.csv").write_text("who,what\n1,2\n")
    with pytest.raises(DataError, match=r"which column is the user\? It has: who, what; pass .* or USER,ITEM for events"):
        read_ratings(tmp_path / "e.csv")
    assert table(read_ratings(tmp_path / "e.csv", ["who", "what"])) == [(1, 2, 1, 0)]


def test_a_note_says_which_columns_may_be_ratings(tmp_path):
    (tmp_path / "e.csv").write_text("user,item,points\na,b,3\n")
    (note,) = read_ratings(tmp_path / "e.csv").notes
    assert "; if one of points is the rating, pass --columns USER,ITEM,RATING" in note
    assert choose_columns(tmp_path, ["user", "item", "ts"]).time == "ts"


def test_a_third_column_of_times_is_asked_about(tmp_path):
    (tmp_path / "e.csv").write_text("1,2,978300760\n2,2,978300761\n")
    asked = r"looks like a time \(978300760\): pass --columns 1,2 for events, or 1,2,3 for ratings"
    with pytest.raises(DataError, match=asked):
        read_ratings(tmp_path / "e.csv")
    assert read_ratings(tmp_path / "e.csv", ["1", "2", "3"]).values.tolist() == [978300736, 978300736]  # float32
    assert table(read_ratings(tmp_path / "e.csv", implicit=True))[0] == (1, 2, 1, 978300760)
    (tmp_path / "d.csv").write_text("a,b,2020-01-01\n")
    with pytest.raises(DataError, match="looks like a time"):
        read_ratings(tmp_path / "d.csv")


def test_dates_are_seconds(tmp_path):
    (tmp_path / "e.csv").write_text("user,item,date\na,x,1970-01-02\nb,x,1970-01-01\n")
    assert read_ratings(tmp_path / "e.csv").times.tolist() == [86400, 0]
    (tmp_path / "z.csv").write_text("user,item,time\na,x,1970-01-01T00:00:01.5Z\nb,x,1970-01-01T01:00:00Z\n")
    assert read_ratings(tmp_path / "z.csv").times.tolist() == [1.5, 3600]
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 1], "time": ["1970-01-01", "1970-01-02"]})
    frame.with_columns(pl.col("time").str.to_date()).write_parquet(tmp_path / "e.parquet")
    assert read_ratings(tmp_path / "e.parquet").times.tolist() == [0, 86400]


def test_bad_times_are_named_or_skipped(tmp_path):
    (tmp_path / "e.csv").write_text("user,item,time\na,x,5\nb,x,noon\n")
    with pytest.raises(DataError, match="line 3: the time is no number and no date: 'b,x,noon'"):
        read_ratings(tmp_path / "e.csv")
    assert read_ratings(tmp_path / "e.csv", on_error="skip").skipped == 1


def test_ratings_as_counts(tmp_path):
    (tmp_path / "r.csv").write_text("user,item,rating\na,x,2\na,y,0\nb,x,1.5\na,x,3\n")
    ratings = read_ratings(tmp_path / "r.csv", implicit=True)
    assert table(ratings) == [("a", "x", 5, 2), ("b", "x", 1.5, 1)]
    assert ratings.item_labels.to_list() == ["x"]
    (tmp_path / "r.csv").write_text("user,item,rating\na,x,2\na,y,-1\n")
    with pytest.raises(DataError, match=r"counts of events must be ≥ 0, the smallest rating is -1\.0; remove such rows"):
        read_ratings(tmp_path / "r.csv", implicit=True)
    (tmp_path / "r.csv").write_text("user,item,rating\na,x,0\n")
    with pytest.raises(DataError, match="has no ratings: 0 rows"):
        read_ratings(tmp_path / "r.csv", implicit=True)


def test_sequences(tmp_path):
    (tmp_path / "s.txt").write_text("1 5 6 5\n2 6\n\n10 7 5\n")
    ratings = read_ratings(tmp_path / "s.txt")
    assert table(ratings) == [(1, 5, 2, 2), (1, 6, 1, 1), (2, 6, 1, 0), (10, 7, 1, 0), (10, 5, 1, 1)]
    assert ratings.notes[0].endswith("s.txt: read as one sequence of items per user, in the order of time")
    with pytest.raises(DataError, match="has a sequence of items per line, and no columns; 2 were given"):
        read_ratings(tmp_path / "s.txt", ["1", "2"])
    (tmp_path / "t.txt").write_text("1 5 6\n2 6 7\n")
    with pytest.raises(DataError, match="no separator found"):
        read_ratings(tmp_path / "t.txt")


@pytest.mark.shared_data
def test_yelp_itself(shared_data):
    ratings = read_ratings(shared_data / "sequences" / "yelp.txt")
    assert ratings.objects == (30_431, 20_033)
    assert ratings.weights.sum() == 316_354


def test_the_cache_keeps_kinds_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("antembed.recommend.read_ratings.CACHED_FROM", 0)
    file, cache = tmp_path / "r.csv", tmp_path / "cache"
    file.write_text("user;item;rating;time\na;x;2;7\na;y;1;8\na;x;1;9\n")
    for _ in range(2):
        explicit = read_ratings(file, cache=cache)
        counts, pairs = read_ratings(file, cache=cache, implicit=True), read_ratings(file, ["user", "item"], cache=cache)
        assert (explicit.implicit, explicit.times, len(explicit)) == (False, None, 3)
        assert table(counts) == [("a", "x", 3, 9), ("a", "y", 1, 8)]
        assert table(pairs) == [("a", "x", 2, 9), ("a", "y", 1, 8)]
        assert "separator ';'" in explicit.notes[0]
        assert len(pairs.notes) == 2
    assert isinstance(pairs.weights, np.memmap)
    assert len(list(cache.iterdir())) == 3


def test_columns_in_memory():
    users, items = pl.Series(["a", "b", "a"]), pl.Series([1, 1, 1])
    assert table(ratings_of(users, items)) == [("a", 1, 2, 2), ("b", 1, 1, 1)]
    assert table(ratings_of(users, items, times=pl.Series([9, 5, 7]))) == [("a", 1, 2, 9), ("b", 1, 1, 5)]
    assert table(ratings_of(users, items, pl.Series([2, 0, 1]), implicit=True)) == [("a", 1, 3, 1)]
    timed = ratings_of(users, items, pl.Series([2, 0, 1]), pl.Series([9, 5, 7]))
    assert (timed.implicit, timed.values.tolist(), timed.times.tolist()) == (False, [2, 0, 1], [9, 5, 7])
    with pytest.raises(DataError, match="columns differ in length: 3 users, 3 items, 2 times"):
        ratings_of(users, items, times=pl.Series([1, 2]))


def test_a_stream_needs_ratings(tmp_path):
    (tmp_path / "e.csv").write_text("user,item\na,x\n")
    with pytest.raises(DataError, match="has no column of ratings, and a stream needs one; it has: user, item"):
        list(RatingStream(tmp_path / "e.csv", batch_size=2))


def test_the_first_row_of_a_bare_file_is_no_header_when_columns_are_numbered(tmp_path):
    """The number of a column was taken for the name in the first row."""
    (tmp_path / "r.csv").write_text("1,2,5\n3,4,1\n")
    assert read_ratings(tmp_path / "r.csv", ["1", "2", "3"]).values.tolist() == [5, 1]


@pytest.mark.parametrize("name", ["qty", "Menge", "quantité", "cantidad", "quantità", "play_count"])
@pytest.mark.parametrize("implicit", [False, True])
def test_quantities_are_the_weights_of_events(tmp_path, name, implicit):
    (tmp_path / "e.csv").write_text(f"kunde,artikel,{name}\n7,a,3\n8,b,1\n7,a,2\n")
    found = read_ratings(tmp_path / "e.csv", implicit=implicit)
    assert table(found) == [(7, "a", 5, 2), (8, "b", 1, 1)]
    assert f"every row is an event (implicit feedback); {name!r} is its quantity q, 1 + ln q its weight" in found.notes[-1]
    assert "to count every row once, pass --columns USER,ITEM" in found.notes[-1]
    frame = pl.read_csv(tmp_path / "e.csv")
    assert ratings_from(frame).implicit
    assert not ratings_from(frame, implicit=False).implicit


def test_ratings_as_quantities_say_so(tmp_path):
    (tmp_path / "e.csv").write_text("user,item,rating,count\n7,a,3,9\n8,b,1,1\n")
    found = read_ratings(tmp_path / "e.csv", implicit=True)  # both are there: the count is the quantity
    assert found.weights.tolist() == [9, 1]
    (tmp_path / "r.csv").write_text("user,item,rating\n7,a,3\n8,b,1\n")
    found = read_ratings(tmp_path / "r.csv", implicit=True)
    assert found.weights.tolist() == [3, 1]
    assert "'rating' is its quantity q, 1 + ln q its weight" in found.notes[-1]
