"""Options and data → a config: what follows from the number of examples, and what is refused before anything is read."""

import pytest
from tests.command import write_ratings

from antembed.recommend.config import LARGE_DEFAULTS
from antembed.recommend.task import Ratings
from antembed.train.configure import configure
from antembed.train.options import ConfigError, to_options

GROWN = {"anchors": "auto", "anchor_penalty": 5e-5}  # less than λ2 for few ratings, more than λ2 for many


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv"))


def many(monkeypatch):
    monkeypatch.setattr("antembed.recommend.config.LARGE", 12_000)


def test_few_ratings_have_the_usual_options(data):
    config, splits = configure(Ratings(), {"data": data, "seed": 3, "solver": "stochastic"})
    assert to_options(config) == {"data": data, "seed": 3}
    assert splits.count == 12_000


def test_many_ratings_have_the_papers_but_what_was_given_stays(data, monkeypatch):
    many(monkeypatch)
    config, _ = configure(Ratings(), {"data": data, "batch_size": 64})
    used = {name: LARGE_DEFAULTS[name] for name in ("l1_penalty", "halve_every")}
    assert to_options(config) == used | {"data": data, "batch_size": 64}


def test_options_are_judged_with_the_defaults_that_the_data_bring(data, monkeypatch):
    with pytest.raises(ConfigError, match=r"λ1 \(anchor_penalty\) is 5e-05 and λ2 0\.0001; raise --anchor-penalty"):
        configure(Ratings(), {"data": data} | GROWN)
    many(monkeypatch)
    config, _ = configure(Ratings(), {"data": data} | GROWN)
    assert config.solver.l0_penalty == 2e-6


def test_wrong_options_are_reported_before_the_data_are_read(monkeypatch):
    many(monkeypatch)
    for wrong in ({"epochs": 0}, {"ridge": -1}, {"alpha": 1}, {"tolerance": "1"}, {"solver": "stochastic", "ridge": 1}):
        with pytest.raises(ConfigError, match=list(wrong)[-1]):
            configure(Ratings(), {"data": "not there.csv"} | wrong)


@pytest.mark.parametrize(("implicit", "said"), [(True, "--implicit: "), (False, "the data have no ratings: ")])
def test_why_rows_are_events(tmp_path, implicit, said):
    (tmp_path / "e.csv").write_text("kunde,artikel,menge\n" + "".join(f"{n % 4},{n % 7},{1 + n % 3}\n" for n in range(28)))
    lines = []
    given = {"data": str(tmp_path / "e.csv"), **({"implicit": True} if implicit else {})}
    _, splits = configure(Ratings(), given, lines.append, search=False)
    assert lines[0] == f"{said}trained as recommend-events"
    assert "'menge' is its quantity q, 1 + ln q its weight" in splits.complaints[0]
