"""Finished runs ranked by eq. 5, from folders or records, and the picture of it."""

import json
from unittest import mock

import pytest
from antembed.pipelines.select import gather, rank
from antembed.reporting.objective import draw_objective
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.growth.objective import nbant_objective


def record(mse, nnz, anchors, *, validation=None, embedding="anchor", **more):
    return {
        "metric": "mse",
        "embedding": embedding,
        "validation": None if validation is None else {"mse": validation},
        "test": {"mse": mse},
        "nnz": {"users": nnz - 10, "items": 10},
        "anchors": dict(zip(("users", "items"), anchors, strict=True)),
        "parameters": nnz + 16 * sum(anchors),
        "seed": 0,
        **more,
    }


def text_record(loss, error, nnz, anchors, **more):
    judged = {"loss": loss, "accuracy": 1 - error, "error": error, "examples": 100}
    return {
        "task": "classify",
        "model": "bag",
        "metric": "accuracy",
        "embedding": "anchor",
        "validation": judged,
        "test": judged,
        "nnz": nnz,
        "anchors": anchors,
        "parameters": nnz + 16 * anchors,
        "seed": 0,
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


def test_the_price_of_an_anchor_decides(tmp_path):
    file = write(tmp_path / "s.jsonl", record(0.70, 900, (10, 8)), record(0.80, 500, (2, 2)), record(0.75, 700, (5, 4)))
    chosen = {}
    for lambda1 in (1e-4, 0.004, 0.1):
        part, ranked = rank(gather([file]), lambda1, 1e-5)
        assert part == "test"
        assert [row["objective"] for row in ranked] == sorted(row["objective"] for row in ranked)
        best = ranked[0]
        assert best["objective"] == nbant_objective(best["mse"] / 2, best["nnz"], best["users"] + best["items"], lambda1, 1e-5)
        chosen[lambda1] = best["users"]
    assert chosen == {1e-4: 10, 0.004: 5, 0.1: 2}


def test_validation_counts_only_if_all_have_it(tmp_path):
    good, bad = record(0.9, 100, (2, 2), validation=0.5), record(0.5, 100, (2, 2), validation=0.9)
    file = write(tmp_path / "s.jsonl", bad, good)
    told = json.loads(call("select", file, "--lambda1", 0.01, "--lambda2", 1e-5, "--json"))
    assert told["judged_on"] == "validation"
    assert [row["mse"] for row in told["ranking"]] == [0.5, 0.9]
    assert [row["source"] for row in told["ranking"]] == [f"{file}:2", f"{file}:1"]
    write(file, good, record(0.7, 100, (2, 2)))
    text = call("select", file, "--lambda1", 0.01, "--lambda2", 1e-5)
    assert "2 runs, judged on test data" in " ".join(text.split())


def test_full_tables_have_no_anchors_to_price_and_failed_trials_no_error(tmp_path):
    rows = (record(0.5, 9000, (0, 0), embedding="full"), record(0.8, 10, (0, 0)), {"failed": "the loss is nan"})
    rows[1]["nnz"] = {"users": 0, "items": 0}  # all anchors priced away: a model of biases, which is a choice
    told = json.loads(call("select", write(tmp_path / "s.jsonl", *rows), "--lambda1", 1, "--lambda2", 1, "--json"))
    assert told["left_out"] == 1
    assert [row["objective"] for row in told["ranking"]] == [0.4]
    with pytest.raises(ValueError, match="0 runs with anchors"):
        rank(rows[:1], 1, 1)


def test_each_run_has_its_own_price_unless_one_is_given():
    rows = [
        record(0.8, 100, (2, 2), source="a", config={"l1": 1e-3, "solver": "prox", "anchors": [3, 2]}),
        record(0.8, 100, (2, 2), source="b", command="antembed train recommend r.csv --l1 1e-4 --anchors 4"),
        record(0.8, 100, (2, 2), source="c", command="antembed train recommend r.csv --l1 1e-5 --anchors auto"),
    ]
    _, ranked = rank(rows, 0.01)
    assert [(row["source"], row["lambda2"], row["asked"], row["auto"]) for row in ranked] == [
        ("c", 1e-5, None, True),
        ("b", 1e-4, (4, 4), False),
        ("a", 1e-3, (3, 2), False),
    ]
    with pytest.raises(ValueError, match="d does not say its λ2; give one for all with --lambda2"):
        rank([record(0.8, 100, (2, 2), source="d", config={"l1": 1e-3, "solver": "cd"})], 0.01)


def test_runs_and_records_of_runs_are_the_same(tmp_path):
    data, out, records = tmp_path / "r.csv", tmp_path / "run", tmp_path / "r.jsonl"
    data.write_text("user,item,rating\n" + "".join(f"{n % 7},{n % 11},{n % 5}\n" for n in range(200)))
    quick = ("--solver", "cd", "--epochs", 1, "--price", 0.01, "--ridge", 0.1, "--anchors", 2, "--dimensions", 2)
    call("train", "recommend", data, *quick, "--out", out, "--record", records)
    _, ranked = rank(gather([out, records]), 0.01, 1e-5)
    assert len(ranked) == 2
    run, row = ({name: value for name, value in found.items() if name != "source"} for found in ranked)
    assert run == row
    (out / "checkpoint" / "final.safetensors").unlink()
    with pytest.raises(ValueError, match="is not finished: 1 of 1 epochs"):
        gather([out])


def test_text_is_ranked_by_its_cross_entropy(tmp_path):
    few = text_record(0.60, 0.1, 500, 2, config={"l1": 1e-5, "anchors": 3}, settings={"anchors": 3})
    many = text_record(0.50, 0.2, 900, 9, command="antembed train classify t.csv --l1 1e-4 --anchors auto")
    full = text_record(0.10, 0.0, 9000, 0, embedding="full")
    file, picture = write(tmp_path / "s.jsonl", few, many, full), tmp_path / "o.svg"
    told = json.loads(call("select", file, "--lambda1", 0.001, "--lambda2", 1e-5, "--json", "--plot", picture))
    assert told["left_out"] == 1
    assert [(row["words"], row["error"], row["asked"], row["auto"]) for row in told["ranking"]] == [
        (9, 0.2, None, True),  # whose loss is lower, though it errs more often
        (2, 0.1, [3], False),
    ]
    assert told["ranking"][0]["objective"] == pytest.approx(0.50 + 1e-5 * 900 + (0.001 - 1e-5) * 9)
    assert "anchors in use, words" in picture.read_text()
    dear = call("select", file, "--lambda1", 0.1)  # each with its own λ2
    assert "validation error rate" in dear
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
    with pytest.raises(ValueError, match=r"x is judged by perplexity; eq. 5 is worked out for runs judged by mse or accuracy"):
        rank([record(0.5, 99, (2, 2), source="x") | {"metric": "perplexity"}], 1, 1)
    with pytest.raises(ValueError, match="runs of 2 tasks, judged otherwise: x by mse and y by accuracy; select among one"):
        rank([record(0.5, 99, (2, 2), source="x"), text_record(0.5, 0.1, 99, 2, source="y")], 1, 1)
    with pytest.raises(ValueError, match=r"t.jsonl:1 is a tiny classifier, of which eq. 5 knows nothing"):
        gather([write(tmp_path / "t.jsonl", text_record(0.5, 0.1, 99, 2, model="tiny"))])


def places(figure, kind):
    return [artist for axes in figure.axes for artist in axes.collections if isinstance(artist, kind)]


def test_the_picture_has_as_many_dimensions_as_were_asked_for(tmp_path):
    from matplotlib.collections import PathCollection
    from mpl_toolkits.mplot3d.art3d import Path3DCollection, Poly3DCollection

    common = {"users": 3, "items": 2, "objective": 0.5, "auto": False}
    even = [common | {"asked": (K, K), "items": K} for K in (2, 4, 6)]
    itself = common | {"asked": None, "auto": True, "objective": 0.4}
    with mock.patch("antembed.reporting.objective.save") as saved:
        draw_objective([*even, itself], tmp_path / "o.svg", "")
        draw_objective([*even, itself, common | {"asked": (3, 2)}], tmp_path / "o.svg", "")
    flat, deep = (call.args[0] for call in saved.call_args_list)
    assert [len(dots.get_offsets()) for dots in places(flat, PathCollection)] == [3, 1]  # anchors given; nbANT
    assert any(list(line.get_ydata()) == [0.4, 0.4] for line in flat.axes[0].lines)  # how low nbANT got
    assert [len(dots.get_offsets()) for dots in places(deep, Path3DCollection)] == [4, 1]
    assert len(places(deep, Poly3DCollection)) == 1


def test_pictures_are_files(tmp_path):
    for name, command in (("flat", "--anchors 4"), ("deep", "--anchors 4,2")):
        file = write(tmp_path / "s.jsonl", *(record(0.5, 99, (K, 2), command=f"antembed x {command}") for K in (2, 3)))
        call("select", file, "--lambda1", 0.01, "--lambda2", 1e-5, "--plot", tmp_path / f"{name}.svg")
        call("select", file, "--lambda1", 0.01, "--lambda2", 1e-5, "--plot", tmp_path / f"{name}2.svg")
        assert (tmp_path / f"{name}.svg").read_bytes() == (tmp_path / f"{name}2.svg").read_bytes()
    assert "user anchors in use" in (tmp_path / "deep.svg").read_text()
    assert "user anchors in use" not in (tmp_path / "flat.svg").read_text()
