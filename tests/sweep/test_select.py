"""Finished runs ranked by eq. 5, from folders or records, and the picture of it."""

import json
from unittest import mock

import pytest
from tests.command import refusal
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.layer.growth_rule import nbant_objective
from antembed.report.pictures import draw_objective
from antembed.sweep.front import gather, rank
from antembed.train.options import from_options
from antembed.train.registry import TASKS


def config_of(task, **options):
    return from_options(TASKS[task].Config, {"data": "d.csv"} | options).model_dump(mode="json")


def record(mse, nnz, anchors, *, validation=None, embedding="anchor", options=None, **more):
    def metrics(error):
        return None if error is None else {"loss": error / 2, "mse": error}

    return {
        "task": "recommend",
        "metric": "mse",
        "embedding": embedding,
        "validation": metrics(validation),
        "test": metrics(mse),
        "nnz": {"users": nnz - 10, "items": 10},
        "anchors": dict(zip(("users", "items"), anchors, strict=True)),
        "parameters": nnz + 16 * sum(anchors),
        "seed": 0,
        "config": config_of("recommend", embedding=embedding, **options or {}),
        **more,
    }


def text_record(loss, error, nnz, anchors, *, embedding="anchor", options=None, **more):
    metrics = {"loss": loss, "accuracy": 1 - error, "error": error, "examples": 100}
    return {
        "task": "classify",
        "model": "mean",
        "metric": "accuracy",
        "embedding": embedding,
        "validation": metrics,
        "test": metrics,
        "nnz": nnz,
        "anchors": anchors,
        "parameters": nnz + 16 * anchors,
        "seed": 0,
        "config": config_of("classify", embedding=embedding, **options or {}),
        **more,
    }


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def call(*arguments):
    words = [str(a) for a in arguments]
    with mock.patch("sys.argv", ["antembed", *words]):
        result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    if isinstance(result.exception, ValueError | OSError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_penalty_of_an_anchor_decides(tmp_path):
    file = write(tmp_path / "s.jsonl", record(0.70, 900, (10, 8)), record(0.80, 500, (2, 2)), record(0.75, 700, (5, 4)))
    chosen = {}
    for anchor_penalty in (1e-4, 0.004, 0.1):
        part, ranked = rank(gather([file]), anchor_penalty, 1e-5)
        assert part == "test"
        assert [row["objective"] for row in ranked] == sorted(row["objective"] for row in ranked)
        best = ranked[0]
        K = sum(best["anchors"].values())
        assert best["objective"] == nbant_objective(best["mse"] / 2, best["nnz"], K, anchor_penalty, 1e-5)
        chosen[anchor_penalty] = best["anchors"]["users"]
    assert chosen == {1e-4: 10, 0.004: 5, 0.1: 2}


def test_validation_counts_only_if_all_have_it(tmp_path):
    good, bad = record(0.9, 100, (2, 2), validation=0.5), record(0.5, 100, (2, 2), validation=0.9)
    file = write(tmp_path / "s.jsonl", bad, good)
    told = json.loads(call("sweep", "--select", file, "--anchor-penalty", 0.01, "--l0-penalty", 1e-5, "--json"))
    assert told["evaluated_on"] == "validation"
    assert [row["mse"] for row in told["ranking"]] == [0.5, 0.9]
    assert [row["source"] for row in told["ranking"]] == [f"{file}:2", f"{file}:1"]
    write(file, good, record(0.7, 100, (2, 2)))
    text = call("sweep", "--select", file, "--anchor-penalty", 0.01, "--l0-penalty", 1e-5)
    assert "2 runs, evaluated on test data" in " ".join(text.split())


def test_full_tables_have_no_anchors_and_failed_trials_no_error(tmp_path):
    rows = (record(0.5, 9000, (0, 0), embedding="full"), record(0.8, 10, (0, 0)), {"failed": "the loss is nan"})
    rows[1]["nnz"] = {"users": 0, "items": 0}  # no anchor was worth it: a model of biases, which is a choice
    told = json.loads(
        call("sweep", "--select", write(tmp_path / "s.jsonl", *rows), "--anchor-penalty", 1, "--l0-penalty", 1, "--json")
    )
    assert told["left_out"] == 1
    assert [row["objective"] for row in told["ranking"]] == [0.4]
    with pytest.raises(ValueError, match="0 runs with anchors"):
        rank(rows[:1], 1, 1)


def test_each_run_has_its_own_penalty_unless_one_is_given():
    auto = {"anchors": "auto", "anchor_penalty": 0.01}
    rows = [
        record(0.8, 100, (2, 2), source="a", options={"l1_penalty": 1e-3, "anchors": (3, 2)}),
        record(0.8, 100, (2, 2), source="b", options={"l1_penalty": 1e-4, "anchors": 4}),
        record(0.8, 100, (2, 2), source="c", options={"l1_penalty": 1e-5, **auto}),
        record(0.8, 100, (2, 2), source="d", options={"l1_penalty": 1e-5, "l0_penalty": 5e-3, **auto}),
    ]
    _, ranked = rank(rows, 0.01)
    assert [(row["source"], row["l0_penalty"], row["asked"], row["auto"]) for row in ranked] == [
        ("c", 1e-5, None, True),
        ("b", 1e-4, (4,), False),
        ("a", 1e-3, (3, 2), False),
        ("d", 5e-3, None, True),
    ]
    exact = record(0.8, 100, (2, 2), source="d", options={"l0_penalty": 1e-3, "solver": "coordinate_descent"})
    with pytest.raises(ValueError, match="d does not say its λ2 for a mean loss; give one for all with --l0-penalty"):
        rank([exact], 0.01)
    assert rank([exact], 0.01, 1e-3)[1][0]["l0_penalty"] == 1e-3


def test_runs_and_records_of_runs_are_the_same(tmp_path):
    data, out, records = tmp_path / "r.csv", tmp_path / "run", tmp_path / "r.jsonl"
    data.write_text("user,item,rating\n" + "".join(f"{n % 7},{n % 11},{n % 5}\n" for n in range(200)))
    small = ("--anchors", 2, "--embedding-dim", 2, "--epochs", 1)
    quick = ("--solver", "coordinate_descent", "--l0-penalty", 0.01, "--ridge", 0.1, *small)
    call("train", "recommend", data, *quick, "--out", out, "--record", records)
    _, ranked = rank(gather([out, records]), 0.01, 1e-5)
    assert len(ranked) == 2
    run, row = ({name: value for name, value in found.items() if name != "source"} for found in ranked)
    assert run == row
    (out / "checkpoint" / "final.safetensors").unlink()
    with pytest.raises(ValueError, match="is not finished: 1 of 1 epochs"):
        gather([out])


def test_text_is_ranked_by_its_cross_entropy(tmp_path):
    few = text_record(0.60, 0.1, 500, 2, options={"l1_penalty": 1e-5, "anchors": 3}, settings={"anchors": [3]})
    many = text_record(0.50, 0.2, 900, 9, options={"l1_penalty": 1e-4, "l0_penalty": 1e-4, "anchors": "auto"})
    full = text_record(0.10, 0.0, 9000, 0, embedding="full")
    file, picture = write(tmp_path / "s.jsonl", few, many, full), tmp_path / "o.svg"
    told = json.loads(
        call("sweep", "--select", file, "--anchor-penalty", 0.001, "--l0-penalty", 1e-5, "--json", "--plot", picture)
    )
    assert told["left_out"] == 1
    assert [(row["anchors"]["anchors"], row["error"], row["asked"], row["auto"]) for row in told["ranking"]] == [
        (9, 0.2, None, True),  # whose loss is lower, though it errs more often
        (2, 0.1, [3], False),
    ]
    assert told["ranking"][0]["objective"] == pytest.approx(0.50 + 1e-5 * 900 + (0.001 - 1e-5) * 9)
    assert "anchors in use" in picture.read_text()
    assert "anchors in use, " not in picture.read_text()  # of one table there is nothing to tell apart
    dear = call("sweep", "--select", file, "--anchor-penalty", 0.1)  # each with its own λ2
    assert "validation error" in dear  # and "rate", on the next line where paths are long
    assert dear.index("anchors=3") < dear.index("nbANT")


def test_what_is_not_to_be_compared(tmp_path):
    two = write(tmp_path / "s.jsonl", record(0.5, 99, (2, 2), sha256="a"), record(0.5, 99, (2, 2), sha256="b"))
    with pytest.raises(ValueError, match=r"runs on 2 different sets of data, as .*s.jsonl:1 and .*s.jsonl:2"):
        gather([two])
    with pytest.raises(ValueError, match="line 1 is no record of a run: it has no anchors"):
        gather([write(tmp_path / "x.jsonl", {"benchmark": "step"})])
    with pytest.raises(ValueError, match="is neither a run folder nor a file of records"):
        gather([tmp_path / "none"])
    with pytest.raises(ValueError, match=r"is no run: it has no config\.json"):
        gather([tmp_path])
    with pytest.raises(
        ValueError, match="x is a run of 'vision'; there are: recommend, recommend-events, classify, classify-ngrams, language"
    ):
        rank([record(0.5, 99, (2, 2), source="x") | {"config": {"task": "vision"}}], 1, 1)
    with pytest.raises(ValueError, match="runs of 2 tasks: x of recommend and y of classify; select among one"):
        rank([record(0.5, 99, (2, 2), source="x"), text_record(0.5, 0.1, 99, 2, source="y")], 1, 1)
    without = record(0.5, 99, (2, 2), source="x") | {"test": {"mse": 0.5}}
    with pytest.raises(ValueError, match=r"x has no loss on test data, which eq. 5 needs; evaluate the run anew"):
        rank([without], 1, 1)


def places(figure, kind):
    return [artist for axes in figure.axes for artist in axes.collections if isinstance(artist, kind)]


def test_the_picture_has_as_many_dimensions_as_were_asked_for(tmp_path):
    from matplotlib.collections import PathCollection
    from mpl_toolkits.mplot3d.art3d import Path3DCollection, Poly3DCollection

    common = {"anchors": {"users": 3, "items": 2}, "objective": 0.5, "auto": False}
    even = [common | {"asked": (K, K), "anchors": {"users": 3, "items": K}} for K in (2, 4, 6)]
    itself = common | {"asked": None, "auto": True, "objective": 0.4}
    with mock.patch("antembed.report.pictures.save") as saved:
        draw_objective([*even, itself], tmp_path / "o.svg", "")
        draw_objective([*even, itself, common | {"asked": (3, 2)}], tmp_path / "o.svg", "")
    flat, deep = (call.args[0] for call in saved.call_args_list)
    assert [len(dots.get_offsets()) for dots in places(flat, PathCollection)] == [3, 1]  # anchors given; nbANT
    assert any(list(line.get_ydata()) == [0.4, 0.4] for line in flat.axes[0].lines)  # how low nbANT got
    assert [len(dots.get_offsets()) for dots in places(deep, Path3DCollection)] == [4, 1]
    assert len(places(deep, Poly3DCollection)) == 1


def test_pictures_are_files(tmp_path):
    for name, anchors in (("flat", (4,)), ("deep", (4, 2))):
        file = write(tmp_path / "s.jsonl", *(record(0.5, 99, (K, 2), options={"anchors": anchors}) for K in (2, 3)))
        call("sweep", "--select", file, "--anchor-penalty", 0.01, "--l0-penalty", 1e-5, "--plot", tmp_path / f"{name}.svg")
        call("sweep", "--select", file, "--anchor-penalty", 0.01, "--l0-penalty", 1e-5, "--plot", tmp_path / f"{name}2.svg")
        assert (tmp_path / f"{name}.svg").read_bytes() == (tmp_path / f"{name}2.svg").read_bytes()
    assert "user anchors in use" in (tmp_path / "deep.svg").read_text()
    assert "user anchors in use" not in (tmp_path / "flat.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--select", "x.jsonl"), "add --anchor-penalty 0.01"),
        (("--select", "x.jsonl", "--anchor-penalty", 1, "--vary", "anchors=2"), "leave out --vary"),
        (("ratings.dat",), "what to vary, as in ratings.dat --vary anchors=5,10"),
        (("a.dat", "b.dat", "--vary", "anchors=2"), "needs one file"),
    ],
)
def test_a_sweep_trains_or_ranks(words, said):
    assert said in refusal("sweep", *words)
