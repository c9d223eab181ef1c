"""The recommender in scikit-learn's manners: what it predicts and recommends, and what it learns later."""

import inspect
import json
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError as SklearnNotFitted
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted
from typer.testing import CliRunner

import antembed as ant
from antembed.cli.app import app
from antembed.data.text_file import DataError
from antembed.recommend.synthetic import planted, ratings
from antembed.tables.row_labels import find
from antembed.train.estimator import FILES, NotFittedError
from antembed.train.options import options_of


def frame(text=False):
    users = planted(80, 8, anchors=4, exponent=0.3, seed=1)
    items = planted(50, exponent=0.3, seed=2, like=users)
    u, i, v = ratings(users, items, 1500, noise=0.1, seed=3).columns
    table = pl.DataFrame({"user": u, "item": i * 10, "rating": v})
    return table.with_columns(pl.format("u{}", "user").alias("user"), pl.format("i{}", "item").alias("item")) if text else table


@pytest.fixture(scope="module")
def fitted():
    return ant.Recommender(anchors=6, embedding_dim=8, epochs=8, options={"l0_penalty": 0.5, "ridge": 1.0}).fit(frame())


def test_predictions_are_good_and_those_of_the_tables(fitted):
    table = frame()
    predicted = fitted.predict(table["user"], table["item"])
    assert np.square(predicted - table["rating"].to_numpy()).mean() < 0.07 < np.var(table["rating"].to_numpy()) / 5
    u, i = find(fitted.user_labels_, table["user"][:20]), find(fitted.item_labels_, table["item"][:20])
    users, items = fitted.users_, fitted.items_
    stored = users[u].any(1)  # else the vector is computed from the user's ratings
    assert stored.sum() > 15
    wanted = (users[u] * items[i]).sum(-1) + users.bias_of(u) + items.bias_of(i)
    np.testing.assert_allclose(predicted[:20][stored], wanted[stored], atol=1e-5)


def test_unknown_users_and_items_are_answered_by_the_prior(fitted):
    known_user, known_item = fitted.user_labels_[3], fitted.item_labels_[4]
    with pytest.warns(UserWarning, match=r"^user 999 is unknown here: predicted by the mean and the items' biases$"):
        got = fitted.predict([known_user, 999, 999], [-5, known_item, -5])
    assert got[0] == pytest.approx(fitted.mean_ + fitted.users_.bias_of(3), rel=1e-5)
    assert got[1] == pytest.approx(fitted.items_.bias_of(4), rel=1e-5)
    assert got[2] == pytest.approx(fitted.mean_)
    with pytest.warns(UserWarning, match=r"^user 999 is unknown here: the list is by popularity$"):
        best = fitted.recommend([999], k=3)
    counts = frame().group_by("item").len().sort(["len", "item"], descending=[True, False])
    assert best["item"].to_list() == counts["item"].head(3).to_list()
    assert best["score"].to_list() == pytest.approx((np.log1p(counts["len"]) / np.log1p(counts["len"][0])).head(3), abs=0.003)


@pytest.mark.parametrize("filter_seen", [True, False])
def test_recommendations_are_the_best_of_all_predictions(fitted, filter_seen):
    users = fitted.user_labels_.to_list()
    found = fitted.recommend(users, k=7, filter_seen=filter_seen)
    items = fitted.item_labels_
    seen = {(u, i) for u, i, _ in frame().iter_rows()}
    for user in users[::9]:
        mine = found.filter(pl.col("user") == user)
        scores = dict(zip(items, fitted.predict([user] * len(items), items), strict=True))
        open_ = {item: score for item, score in scores.items() if not (filter_seen and (user, item) in seen)}
        wanted = sorted(open_, key=open_.get, reverse=True)[:7]
        best = [open_[item] for item in wanted]
        assert len(set(mine["item"])) == len(wanted)
        np.testing.assert_allclose([open_[item] for item in mine["item"]], best, rtol=0, atol=1e-5)  # ties in any order
        np.testing.assert_allclose(mine["score"].to_numpy(), best, rtol=0, atol=1e-5)


def test_who_has_seen_nearly_everything_gets_less():
    table = frame()
    all_but_two = pl.DataFrame({"user": [0] * 48, "item": np.arange(48) * 10, "rating": [3.0] * 48})
    table = pl.concat([table, all_but_two], how="vertical_relaxed").unique(["user", "item"])
    fitted = ant.Recommender(anchors=4, embedding_dim=4, epochs=2, options={"l0_penalty": 0.1, "ridge": 1.0}).fit(table)
    assert len(fitted.recommend([0], k=10)) <= 2


def test_similar_items_have_similar_vectors(fitted):
    item = fitted.item_labels_[7]
    found = fitted.similar_items(item, k=5)
    vectors = fitted.items_[:]
    cosines = vectors @ vectors[7] / np.maximum(np.linalg.norm(vectors, axis=1) * np.linalg.norm(vectors[7]), 1e-12)
    cosines[7] = -np.inf
    np.testing.assert_allclose(found["similarity"].to_numpy(), np.sort(cosines)[::-1][:5], rtol=1e-4)
    assert item not in found["item"].to_list()
    with pytest.raises(KeyError, match="no item 123456 among the"):
        fitted.similar_items(123456)


def test_save_and_load(fitted, tmp_path):
    fitted.save(tmp_path / "r")
    again = ant.Recommender.load(tmp_path / "r")
    table = frame()
    np.testing.assert_array_equal(again.predict(table["user"], table["item"]), fitted.predict(table["user"], table["item"]))
    assert again.recommend([5, 6]).equals(fitted.recommend([5, 6]))
    again.save(tmp_path / "twice")
    for file in (tmp_path / "r").iterdir():
        assert (tmp_path / "twice" / file.name).read_bytes() == file.read_bytes()


def test_text_labels_and_the_stochastic_solver():
    fitted = ant.Recommender(solver="stochastic", anchors=(5, 4), embedding_dim=6, epochs=2).fit(frame(text=True))
    assert fitted.recommend(["u7"], k=2)["item"].str.starts_with("i").all()
    with pytest.warns(UserWarning, match="^user 'nobody' is unknown here"):
        assert fitted.predict(["u7", "nobody"], ["i10", "i10"]).shape == (2,)


def held_out():
    users = planted(80, 8, anchors=4, exponent=0.3, seed=1)
    items = planted(50, exponent=0.3, seed=2, like=users)
    u, i, v = ratings(users, items, 3000, noise=0.1, seed=7).columns
    return u, i * 10, v


def error(model):
    users, items, wanted = held_out()
    return float(np.square(model.predict(users, items) - wanted).mean())


class TestMoreRatings:
    """partial_fit, after fit, after load, or from nothing."""

    settings: ClassVar = {"anchors": 6, "embedding_dim": 8, "epochs": 8, "options": {"l0_penalty": 0.3, "ridge": 1.0}}

    def halves(self):
        """Users 60 to 79 and items from 400 on come in the second half only."""
        table = frame()
        early = (pl.col("user") < 60) & (pl.col("item") < 400) & (pl.int_range(pl.len()) % 2 == 0)
        return table.filter(early), table.filter(~early)

    def test_new_ratings_are_learned_and_old_ones_not_forgotten(self):
        first, second = self.halves()
        model = ant.Recommender(**self.settings).fit(first)
        with pytest.warns(UserWarning, match="users .* are unknown here"):
            before = error(model)
        with pytest.warns(UserWarning, match="^user 70 is unknown here: the list is by popularity"):
            assert model.recommend([70], k=1)["user"].to_list() == [70]  # nobody yet
        model.partial_fit(second)
        whole = error(ant.Recommender(**self.settings).fit(frame()))
        assert whole < error(model) < 0.6 * before
        assert model.user_labels_.to_list() == sorted(set(frame()["user"]))
        assert model.item_labels_.to_list() == sorted(set(frame()["item"]))
        old = np.square(model.predict(first["user"], first["item"]) - first["rating"].to_numpy()).mean()
        assert old < 0.12

    def test_what_was_rated_is_seen(self):
        first, second = self.halves()
        model = ant.Recommender(**self.settings).fit(first).partial_fit(second)
        seen = {(u, i) for u, i, _ in frame().iter_rows()}
        found = model.recommend(model.user_labels_, k=5)
        assert not seen & set(zip(found["user"], found["item"], strict=True))

    def test_after_loading_it_is_the_same(self, tmp_path):
        first, second = self.halves()
        model = ant.Recommender(**self.settings).fit(first)
        model.save(tmp_path / "r")
        again = ant.Recommender.load(tmp_path / "r").partial_fit(second)
        model.partial_fit(second)
        users, items, _ = held_out()
        np.testing.assert_array_equal(again.predict(users, items), model.predict(users, items))

    def test_from_nothing(self):
        model = ant.Recommender(**self.settings).partial_fit(*(frame()[name] for name in ("user", "item", "rating")))
        assert error(model) < 0.15
        model.partial_fit([1000, 1000], [0, 10], [4.0, 4.0])
        assert model.recommend([1000], k=3)["item"].is_in([0, 10]).sum() == 0

    def test_fitting_anew_forgets_what_was_streamed(self):
        first, second = self.halves()
        model = ant.Recommender(**self.settings).partial_fit(first).fit(second)
        wanted = ant.Recommender(**self.settings).fit(second)
        users, items, _ = held_out()
        for each in (model, wanted):
            each.partial_fit(first)
        np.testing.assert_array_equal(model.predict(users, items), wanted.predict(users, items))

    def test_labels_of_another_kind(self, fitted):
        with pytest.raises(DataError, match="labels were Int32 so far, 'x' is not"):
            ant.Recommender(**self.settings).fit(frame()).partial_fit(["x"], [10], [3.0])

    def test_what_it_cannot_do(self, fitted, tmp_path):
        with pytest.raises(ValueError, match="partial_fit is for solver='coordinate_descent'"):
            ant.Recommender(solver="stochastic").partial_fit(frame())
        with pytest.raises(DataError, match="2 events of 2 users are too few to hold some out"):
            ant.Recommender().fit([1, 2], [3, 4])  # without ratings they are events
        with pytest.raises(TypeError, match="got one list"):
            ant.Recommender().fit([1, 2])
        fitted.save(tmp_path / "r")
        (tmp_path / "r" / "seen.safetensors").unlink()
        with pytest.raises(ValueError, match="what users have rated is not known"):
            ant.Recommender.load(tmp_path / "r").partial_fit(frame())


def test_clear_errors(fitted, tmp_path):
    with pytest.raises(NotFittedError, match="call fit"):
        ant.Recommender().recommend([1])
    with pytest.raises(ValueError, match="2 users and 1 items"):
        fitted.predict([1, 2], [10])
    with pytest.raises(ValueError, match="at least one user, got none"):
        fitted.recommend([])
    with pytest.raises(ValueError, match="k must be ≥ 1, got 0"):
        fitted.recommend([1], k=0)
    with pytest.raises(ValueError, match=r"is no run: it has no config\.json"):
        ant.Recommender.load(tmp_path)
    with pytest.raises(ValueError, match="solver 'magic' is none of: auto, stochastic, coordinate_descent, online"):
        ant.Recommender(solver="magic")
    with pytest.raises(DataError, match="2 users, 1 items, 1 ratings"):
        ant.Recommender().fit([1, 2], [1], [1.0])
    with pytest.raises(DataError, match="every row needs a user"):
        ant.Recommender().fit([1, None], [1, 2], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"row 2 has the label 'a\\ud800'.*lone surrogate\); replace it"):
        fitted.recommend(["a", "a\ud800"])


@pytest.mark.parametrize("lonely", ["user", "item"])
def test_one_user_or_one_item_is_enough(lonely):
    others, one = np.arange(40), np.zeros(40, int)
    users, items = (one, others) if lonely == "user" else (others, one)
    recommender = ant.Recommender(anchors=2, embedding_dim=2, epochs=2, options={"ridge": 1.0}).fit(users, items, others % 5)
    assert np.isfinite(recommender.predict(users, items)).all()


def test_commands(tmp_path):
    frame(text=True).write_csv(tmp_path / "r.csv")
    words = ["train", "recommend", str(tmp_path / "r.csv"), "--out", str(tmp_path / "run"), "--solver",
             "coordinate_descent", "--epochs", "2", "--l0-penalty", "0.01"]  # fmt: skip
    assert CliRunner().invoke(app, words).exit_code == 0
    done = CliRunner().invoke(app, ["recommend", str(tmp_path / "run"), "u3", "u4", "--items", "4", "--json"])
    rows = json.loads(done.stdout)
    assert [row["user"] for row in rows] == ["u3"] * 4 + ["u4"] * 4
    seen = set(frame(text=True).filter(pl.col("user") == "u3")["item"])
    assert not seen & {row["item"] for row in rows[:4]}
    done = CliRunner().invoke(app, ["similar", str(tmp_path / "run"), rows[0]["item"], "--items", "3"])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 4


def test_options_can_be_read_given_again_and_changed():
    model = ant.Recommender(anchors=6, embedding_dim=8, options={"l0_penalty": 0.5})
    params = model.get_params()
    assert (params["solver"], params["anchors"], params["options"]) == (None, 6, {"l0_penalty": 0.5})
    assert model.config.solver.name == "coordinate_descent"
    assert ant.Recommender(**params).config == model.config
    assert model.set_params(l0_penalty=1.5, seed=2).get_params() == params | {"options": {"l0_penalty": 1.5}, "seed": 2}
    assert (model.config.solver.penalties.l0_penalty, model.config.machine.seed) == (1.5, 2)
    assert model.set_params(options={"ridge": 3.0}, seed=None).get_params() == params | {"options": {"ridge": 3.0}}
    assert model.set_params(ridge=None).get_params() == params | {"options": None}
    assert ant.Recommender(options={"seed": 3}).set_params(seed=4).get_params()["seed"] == 4
    assert ant.Recommender(solver="stochastic").config.solver.sparsity.l1_penalty == 1e-4
    with pytest.raises(ValueError, match="--l1-penalty is an option of --solver stochastic"):
        ant.Recommender(options={"l1_penalty": 1e-3})
    with pytest.raises(TypeError, match="unexpected keyword argument 'l0_penalti'"):
        ant.Recommender(l0_penalti=1)
    with pytest.raises(ValueError, match="Recommender has no option 'l0_penalti'; did you mean l0_penalty"):
        model.set_params(l0_penalti=1)
    with pytest.raises(ValueError, match="Recommender has no option 'l0_penalti'; did you mean l0_penalty"):
        ant.Recommender(options={"l0_penalti": 1})
    with pytest.raises(ValueError, match="Recommender has no option 'data'"):  # fit takes them
        ant.Recommender(options={"data": "ratings.csv"})
    with pytest.raises(ValueError, match="seed is given twice, as an argument and in options; leave one of them out"):
        ant.Recommender(seed=1, options={"seed": 1})
    with pytest.raises(ValueError, match="ridge must be ≥ 0, got -1"):
        ant.Recommender(options={"ridge": -1})


def test_the_callback_is_told_of_every_epoch():
    seen = []
    ant.Recommender(anchors=4, embedding_dim=4, epochs=3).fit(frame(), callback=seen.append)
    assert [progress.epoch for progress in seen if progress.record.get("epoch") == progress.epoch] == [1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [{}, {"solver": "stochastic", "options": {"lr": 0.1}}, {"anchors": (3, 4), "options": {"l0_penalty": 0.5}}],
)
def test_scikit_learn_clones_it_with_its_options(options):
    model = ant.Recommender(**options)
    copy = clone(model)
    assert copy.config == model.config
    assert copy.get_params() == model.get_params()
    assert copy.set_params(seed=7).config.solver == model.config.solver  # whatever the defaults are
    assert (copy.config.machine.seed, model.config.machine.seed) == (7, 0)
    with pytest.raises(ValueError, match="Recommender has no option 'typo'"):
        copy.set_params(typo=1)


def test_it_is_shown_with_the_options_that_were_changed():
    assert repr(ant.Recommender()) == "Recommender()"
    wanted = "Recommender(seed=3, options={'l0_penalty': 0.5})"
    assert repr(ant.Recommender(options={"l0_penalty": 0.5}, seed=3)) == wanted
    assert repr(ant.TextClassifier(model="mean")) == "TextClassifier(model='mean')"
    assert repr(clone(ant.HashedNgramClassifier(budget="2KB"))) == "HashedNgramClassifier(budget='2KB')"


def test_its_score_is_r_squared(fitted):
    users, items, wanted = held_out()
    assert fitted.score(users, items, wanted) == pytest.approx(r2_score(wanted, fitted.predict(users, items)))
    assert fitted.score(users[:2], items[:2], [3.0, 3.0]) == 0.0  # all alike: as scikit-learn has it
    with pytest.raises(ValueError, match="score takes triples: got 2 pairs and 3 ratings"):
        fitted.score(users[:2], items[:2], wanted[:3])
    with pytest.raises(ValueError, match="R² needs at least 2 ratings, got 1"):
        fitted.score(users[:1], items[:1], wanted[:1])


def test_what_is_not_fitted_says_so():
    model = ant.Recommender()
    for use in (
        lambda: model.predict([1], [10]),
        lambda: model.score([1], [10], [3.0]),
        lambda: model.similar_items(10),
        lambda: model.save("nowhere"),
        lambda: model.users_,
        lambda: model.item_labels_,
    ):
        with pytest.raises(NotFittedError, match="this Recommender has not been fitted; call fit"):
            use()
    assert not hasattr(model, "users_")
    with pytest.raises(SklearnNotFitted):
        check_is_fitted(model)


@pytest.mark.parametrize("kind", [ant.Recommender, ant.TextClassifier, ant.HashedNgramClassifier, ant.LanguageModel])
def test_signatures_are_a_dozen_options_of_the_command_line(kind):
    arguments = inspect.signature(kind).parameters
    assert len(arguments) <= 12
    assert set(arguments) - {"options"} <= set(options_of(kind.Config)) - FILES
    assert all(each.kind is each.KEYWORD_ONLY for each in arguments.values())


def test_without_options_it_searches_and_learns_all_ratings(tmp_path):
    said = []
    model = ant.Recommender().fit(frame(), report=said.append)
    assert any(line.startswith("search, trial 1") for line in said)
    table = frame()
    assert model.score(table["user"], table["item"], table["rating"]) > 0.5
    assert len(model.user_labels_) == table["user"].n_unique()
    model.save(tmp_path / "r")
    again = ant.Recommender.load(tmp_path / "r")
    assert repr(again).startswith("Recommender(")
    assert again.get_params()["embedding_dim"] == model.config.tables.embedding_dim


def test_a_sparse_matrix_of_ratings():
    table = frame()
    matrix = sparse.csr_array((table["rating"].to_numpy(), (table["user"].to_numpy(), table["item"].to_numpy())))
    model = ant.Recommender(implicit=False, anchors=4, embedding_dim=4, epochs=2).fit(matrix)
    assert model.config.task == "recommend"


def test_columns_of_other_names_and_single_users():
    table = frame().rename({"user": "Wer", "item": "Was", "rating": "Wie"})
    with pytest.raises(DataError, match=r"columns=\[…\] in Python"):
        ant.Recommender().fit(table)
    quick = ant.Recommender(anchors=4, embedding_dim=4, epochs=2, options={"l0_penalty": 0.1})
    model = quick.fit(table, columns=["Wer", "Was", "Wie"])
    user = table["Wer"][0]
    assert len(model.recommend([user], k=2)) == 2
    for single in (user, "Käufer3"):
        with pytest.raises(TypeError, match="give a list of users"):
            model.recommend(single)
