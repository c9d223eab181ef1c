"""Ratings from files of every kind, and clear words about bad ones."""

import numpy as np
import polars as pl
import pytest

from antembed.data import DataError, read_ratings, split

ROWS = [(10, "b", 4.0), (2, "a", 3.5), (10, "a", 1.0)]


def check(ratings, string_users=False):
    assert ratings.user_labels.to_list() == (["10", "2"] if string_users else [2, 10])
    assert ratings.item_labels.to_list() == ["a", "b"]
    assert ratings.users.tolist() == ([0, 1, 0] if string_users else [1, 0, 1])
    assert ratings.items.tolist() == [1, 0, 0]
    np.testing.assert_array_equal(ratings.values, np.float32([4, 3.5, 1]))
    assert ratings.users.dtype == np.int64


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
    with pytest.raises(DataError, match="three, user, item and rating; got 2"):
        read_ratings(file, ["who", "what"])


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


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"user,item,rating\n", "no ratings"),
        (b"user,item,rating\n1,2,good\n", r"row 1 of 1 is not a rating: \('1', '2', 'good'\)"),
        (b"user,item,rating\n1,2,3\n1,,3\n", "row 2 of 2 is not a rating"),
        (b"user,item,rating\n1,2,3\n1,4,nan\n", "row 2 of 2 is not a rating"),
        (b"user item rating\n1 2 3\n", "no separator found"),
        (b"1,2\n1,3\n", "no separator found"),
        (b"user,item,rating\n1,2,3,4,5\n", "more fields than the first line"),
        (b"user,item,rating\n\xff\xfe,2,3\n", "not UTF-8 throughout"),
        (b"\x1f\x8b\x08\x00rubbish\n", "is compressed"),
    ],
)
def test_bad_files(tmp_path, content, text):
    file = tmp_path / "bad.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=text):
        read_ratings(file)


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="is no file"):
        read_ratings(tmp_path / "none.csv")


def test_splits_are_seeded_and_disjoint():
    cut = split(1000, "honest", 7)
    assert [len(cut[name]) for name in ("train", "validation", "test")] == [800, 100, 100]
    assert np.array_equal(np.sort(np.concatenate(list(cut.values()))), np.arange(1000))
    assert np.array_equal(cut["test"], split(1000, "honest", 7)["test"])
    assert not np.array_equal(cut["test"], split(1000, "honest", 8)["test"])
    assert [len(part) for part in split(1000, "paper", 7).values()] == [900, 0, 100]
    with pytest.raises(ValueError, match="unknown protocol 'guess'; there are: honest, paper"):
        split(10, "guess", 0)
    for n in (2, 5):
        with pytest.raises(ValueError, match=f"{n} examples are too few"):
            split(n, "honest", 0)


def test_movielens_1m_itself(shared_data):
    ratings = read_ratings(shared_data / "ml-1m" / "ratings.dat")
    assert (len(ratings), len(ratings.user_labels), len(ratings.item_labels)) == (1_000_209, 6040, 3706)
