"""The table of the README: a row a data set, from the records of runs without options."""

import pytest
from experiments.default_tables import by_data, data_name, defaults


def run(data, task, metric, value, seed=0, **more):
    return {
        "task": task,
        "metric": metric,
        "test": {metric: value},
        "seed": seed,
        "bytes": 20_000,
        "seconds": 3.0,
        "wall_seconds": 12.4,
        "config": {"input": {"data": data}},
        **more,
    }


RATINGS = {"baselines": {"the mean": 1.25, "biases alone": 0.83}, "dense_bytes": 800_000}
RECORDS = [
    run("/data/ag-news/train.csv", "classify-ngrams", "accuracy", 0.907, baselines={"the largest class": 0.25}),
    run("/data/sequences/yelp.txt", "recommend-events", "ndcg@10", 0.03, baselines={}, dense_bytes=2_000_000),
    run("ml-1m/ratings.dat", "recommend", "mse", 0.9, 0, **RATINGS),  # an older run of seed 0
    run("ml-1m/ratings.dat", "recommend", "mse", 0.72, 0, **RATINGS),
    run("ml-1m/ratings.dat", "recommend", "mse", 0.74, 1, **RATINGS),
]
FRONT = [
    run("ml-1m/ratings.dat", "recommend", "mse", mse, embedding="anchor", parameters=parameters)
    for mse, parameters in ((0.8, 5_000), (0.76, 15_000), (0.71, 50_000))
]
for number, record in enumerate(FRONT):
    record["config"] = {"input": {}, "anchors": number}
NGRAMS = [
    {"test": {"accuracy": 0.9}, "bytes": 9_990, "wall_seconds": 30} | {"config": {"solver": {"budget": budget}}}
    for budget in ("10KB", "22KB")
]


def test_rows():
    _, _, films, yelp, news, paper, small = defaults(RECORDS, FRONT, NGRAMS).splitlines()
    command = "`antembed train recommend`"
    beside = "the mean 1.2500, biases alone 0.8300"
    assert films == f"| MovieLens 1M, ratings | {command} | MSE **0.7300** ± 0.0100 | {beside} | 20 kB, 40 × smaller | 12 s |"
    assert yelp == f"| Yelp, events | {command} | NDCG@10 **0.0300** | – | 20 kB, 100 × smaller | 12 s |"
    assert news == (
        "| AG-News, text | `antembed train classify` | accuracy **90.7 %** | the largest class 25.0 % | 20 kB | 12 s |"
    )
    assert "MSE **0.7600**, 15.0K parameters | the paper's full tables 0.771 (155.2K), anchored 0.786 (29.2K)" in paper
    assert "accuracy **90.0 %** | fastText, quantized to 33 kB: 88.4 % | 10 kB" in small


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("ml-1m/ratings.dat", "ml-1m"),
        ("/somewhere/ag-news/train.csv", "ag-news"),
        ("/somewhere/sequences/amazon-sports.txt", "amazon-sports"),
        ("shop.csv", "shop"),
    ],
)
def test_data_sets_are_named_by_folder_or_file(path, name):
    assert data_name({"config": {"input": {"data": path}}}) == name


def test_data_sets_that_are_not_listed_come_last():
    other = run("shop.csv", "recommend-events", "ndcg@10", 0.1)
    assert [name for name, _ in by_data([other, *RECORDS])] == ["ml-1m", "yelp", "ag-news", "shop"]


def test_without_records_two_rows_are_left():
    assert len(defaults([], FRONT, NGRAMS).splitlines()) == 4
