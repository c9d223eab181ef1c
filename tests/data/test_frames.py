"""Tables in memory: polars, pandas, NumPy, sparse matrices; as ratings, events and texts."""

import numpy as np
import polars as pl
import pytest
from scipy import sparse
from tests.data.pandas_like import DataFrame, Series

from antembed.data.frames import texts_from, values_from
from antembed.data.text_file import DataError
from antembed.recommend.in_memory import as_events, ratings_from

USERS, ITEMS, RATINGS = ["b", "a", "b"], [7, 7, 3], [4.0, 3.5, 1.0]


def check(ratings):
    assert (ratings.user_labels.to_list(), ratings.item_labels.to_list()) == (["a", "b"], [3, 7])
    assert (ratings.users.tolist(), ratings.items.tolist()) == ([1, 0, 1], [1, 1, 0])
    assert (ratings.values.tolist(), ratings.implicit) == (RATINGS, False)


@pytest.mark.parametrize("column", [list, np.array, pl.Series, Series, lambda x: np.array(x, object)])
def test_three_columns_of_any_kind(column):
    check(ratings_from(column(USERS), column(ITEMS), column(RATINGS)))


@pytest.mark.parametrize("table", [pl.DataFrame, pl.LazyFrame, DataFrame])
def test_tables_have_the_names_of_files(table):
    columns = {"timestamp": [3, 2, 1], "userId": USERS, "movieId": ITEMS, "rating": RATINGS}
    check(ratings_from(table(columns)))
    counted = ratings_from(table(columns), implicit=True)
    assert (counted.weights.tolist(), counted.times.tolist()) == (RATINGS, [3, 2, 1])
    columns.pop("rating")
    events = ratings_from(table(columns))
    assert (events.implicit, events.weights.tolist(), events.times.tolist()) == (True, [1, 1, 1], [3, 2, 1])
    with pytest.raises(DataError, match=r"the table given: which column is the user\? It has: who, item"):
        ratings_from(table({"who": [1], "item": [2]}))


def test_ratings_and_files_pass_through(tmp_path):
    ratings = ratings_from(USERS, ITEMS, RATINGS)
    assert ratings_from(ratings) is ratings
    (tmp_path / "r.csv").write_text("user,item,rating\nb,7,4\na,7,3.5\nb,3,1\n")
    check(ratings_from(tmp_path / "r.csv"))
    assert ratings_from(str(tmp_path / "r.csv"), implicit=True).implicit


def test_users_and_items_alone_are_events():
    events = ratings_from(["a", "b", "a"], [1, 1, 1])
    assert (events.implicit, events.weights.tolist(), events.times.tolist()) == (True, [2, 1], [2, 1])


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_matrices_are_counts(kind):
    matrix = kind(np.array([[0, 2, 0], [0, 0, 0], [1, 3, 0]]))
    events = ratings_from(matrix)
    found = zip(events.user_labels.gather(events.users), events.item_labels.gather(events.items), events.weights, strict=True)
    assert sorted(found) == [(0, 1, 2), (2, 0, 1), (2, 1, 3)]
    assert (events.implicit, events.objects) == (True, (2, 2))  # the second row and the last column are empty
    ratings = ratings_from(matrix, implicit=False)
    assert (ratings.implicit, sorted(ratings.values)) == (False, [1, 2, 3])


def test_arrays_of_two_or_three_columns():
    ratings = ratings_from(np.array([[10, 3, 4.5], [2, 3, 1.0]]))
    assert (ratings.user_labels.to_list(), ratings.values.tolist()) == ([2, 10], [4.5, 1])
    assert ratings_from(np.array([[10, 3], [2, 3]])).implicit
    with pytest.raises(DataError, match=r"the array has the shape \(2, 5\); give two or three columns.*scipy.sparse.csr_array"):
        ratings_from(np.ones((2, 5)))


def test_ratings_become_events():
    events = as_events(ratings_from(["a", "a", "b"], [1, 2, 1], [2, 0, 1]))
    assert (events.weights.tolist(), events.times.tolist(), events.implicit) == ([2, 1], [0, 1], True)
    assert as_events(events) is events
    with pytest.raises(DataError, match=r"the smallest rating is -1\.0"):
        as_events(ratings_from(["a"], [1], [-1]))
    with pytest.raises(DataError, match="all 1 ratings are 0"):
        as_events(ratings_from(["a"], [1], [0]))


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        (([1, 2],), TypeError, "or users, items and ratings; got one list"),
        (([1, 2], None, [1, 2]), TypeError, "give users, items and ratings, or one file"),
        (([1, 2], [1], [1, 2]), DataError, "columns differ in length: 2 users, 1 items, 2 ratings"),
        ((["a", 2], [1, 1], [1, 2]), DataError, "values of several types"),
        (
            (["a", "b\udc80"], [1, 1], [1, 2]),
            DataError,
            r"row 2 has the label 'b\\udc80'.*surrogate\); replace it: label\.encode",
        ),
        (([1, 2], Series(["\ud800", "b"]), [1, 2]), DataError, r"row 1 has the label '\\ud800'"),
        (([1, 2], [1, 2], [1e30, 4e30]), DataError, r"largest rating is 4e\+30.*between 1e-06 and 1e\+15; divide .* by 1e\+31"),
        (([1, 2], [1, 2], [-1e-30, 0]), DataError, r"largest rating is 1e-30 in magnitude.*multiply all ratings by 1e\+30"),
        ((np.ones((2, 2)), [1, 1], [1, 2]), DataError, r"a column has the shape \(2, 2\)"),
        ((Series(["a", None]), [1, 1], [1, 2]), DataError, "every row needs a user, an item and a number"),
    ],
)
def test_what_is_no_table(given, error, told):
    with pytest.raises(error, match=told):
        ratings_from(*given)


@pytest.mark.parametrize(
    "given",
    [
        ["a", None, "b"],
        ("a", None, "b"),
        pl.Series(["a", None, "b"]),
        Series(["a", None, "b"]),
        Series(["a", float("nan"), "b"]),
        np.array(["a", np.nan, "b"], object),
        np.array([["a"], [None], ["b"]], object),
        DataFrame({"text": ["a", None, "b"]}),
        DataFrame({"n": [1, 2, 3], "text": ["a", None, "b"]})[["text"]],
        pl.DataFrame({"text": ["a", None, "b"]}),
        pl.LazyFrame({"text": ["a", None, "b"]}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_texts_of_any_kind(given):
    assert texts_from(given) == ["a", None, "b"]


@pytest.mark.parametrize("table", [DataFrame, pl.DataFrame])
def test_tables_of_several_texts_are_refused(table):
    with pytest.raises(ValueError, match="the table of texts has 2 columns: title, text; give one of them"):
        texts_from(table({"title": ["a"], "text": ["b"]}))


def test_single_texts_and_shapes():
    with pytest.raises(TypeError, match="give a list of texts"):
        texts_from("a")
    with pytest.raises(ValueError, match=r"labels have the shape \(2, 3\); give one for each text: \(2,\)"):
        values_from(np.ones((2, 3)), "labels")
    assert list(values_from(Series([1, 2]), "labels")) == [1, 2]
