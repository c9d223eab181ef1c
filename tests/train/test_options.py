"""Configs and flat options: there and back by JSON and TOML, and errors that name the option, its owner and both numbers."""

import json
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antembed.classify.config import TextConfig
from antembed.recommend.config import LARGE_DEFAULTS, RatingsConfig
from antembed.tables.model_folder import RunError
from antembed.train.options import (
    Config,
    ConfigError,
    chosen_options,
    from_options,
    option,
    options_of,
    to_options,
    validated,
    with_options,
)
from antembed.train.registry import TASKS
from antembed.train.run_folder import RunFolder

STOCHASTIC, CD, ONLINE = {"solver": "stochastic"}, {"solver": "coordinate_descent"}, {"solver": "online"}

# Options that go with each other; a set of them is a run.
COMMON = {
    "data": st.sampled_from(["", "r.csv", 'a "b" \\ c.csv', "Über.dat"]),
    "columns": st.sampled_from(["u,i,r", ("u", "i", "r"), ["1", "2", "3"]]),
    "embedding_dim": st.integers(1, 512),
    "biases": st.booleans(),
    "values": st.sampled_from(["auto", "fp32", "fp16", "int8"]),
    "encoding": st.sampled_from(["auto", "plain", "bitmap", "csr", "packed"]),
    "seed": st.integers(0, 2**31),
    "threads": st.integers(1, 64),
    "epochs": st.integers(1, 1000),
}
POSITIVE = st.floats(1e-12, 1e6)
PENALTIES = {"l0_penalty": POSITIVE, "penalize_biases": st.booleans(), "ridge": POSITIVE, "ridge_per_rating": POSITIVE,
             "bias_ridge": POSITIVE}  # fmt: skip
FREE_PENALTIES = {name: values for name, values in PENALTIES.items() if name != "l0_penalty"}
NO_EPOCHS = {name: values for name, values in COMMON.items() if name != "epochs"}
WHOLE_FILE = {"on_error": st.sampled_from(["stop", "skip"]), "split": st.sampled_from(["80/10/10", "90/10"])}
STEPS = {
    "batch_size": st.integers(1, 10**6),
    "patience": st.integers(0, 50),
    "engine": st.sampled_from(["auto", "fused", "torch"]),
    "optimizer": st.sampled_from(["yogi", "adam", "sgd"]),
    "lr": POSITIVE,
    "schedule": st.sampled_from(["halving", "cosine", "constant"]),
    "weight_decay": POSITIVE,
    "l1_penalty": POSITIVE,
    "l1_warmup": st.floats(0, 1),
    "prune": st.floats(0, 10),
    "init": st.sampled_from(["signed", "half-normal", "dense"]),
}
FIXED = {"anchors": st.one_of(st.integers(1, 99), st.lists(st.integers(1, 99), min_size=1, max_size=2), st.just("40,16"))}
GROWN = {"anchor_penalty": st.floats(1e6, 1e9), "l0_penalty": POSITIVE, "initial_anchors": st.integers(1, 50)}
SETS = {
    "stochastic": ({}, COMMON | WHOLE_FILE | STEPS | FIXED | {"polish": st.floats(0, 0.9), "max_nonzeros": st.integers(0, 9)}),
    "budget": ({"l1_penalty": 1e-3}, COMMON | STEPS | FIXED | {"budget": st.sampled_from(["40x", "400k", "2MB"])}),
    "auto": ({"anchors": "auto", "split": "80/10/10", "anchor_penalty": 1e6}, COMMON | STEPS | GROWN),
    "trend": ({"anchors": "auto", "growth": "trend", "anchor_penalty": 1e6}, COMMON | STEPS | {"anchor_step": st.just(2)}),
    "mixed": ({"embedding": "mixed"}, COMMON | {"alpha": st.floats(0, 2), "lr": POSITIVE}),
    "descent": (CD, COMMON | WHOLE_FILE | PENALTIES | FIXED | {"unobserved_weight": POSITIVE}),
    "descent-budget": (CD | {"budget": "40x"}, COMMON | WHOLE_FILE | FREE_PENALTIES | FIXED),
    "tolerance": (CD | {"tolerance": "1%"}, NO_EPOCHS | FREE_PENALTIES | FIXED | {"basis": st.just("axes")}),
    "online": (ONLINE, COMMON | PENALTIES | FIXED | {"batch_size": st.integers(1, 10**6), "test": st.just("t.csv")}),
}  # fmt: skip


@st.composite
def option_sets(draw):
    base, more = draw(st.sampled_from(list(SETS.values())))
    return base | draw(st.fixed_dictionaries({}, optional=more))


def to_toml(options):
    """TOML of flat options; JSON's strings, numbers, booleans and lists are TOML's."""
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in options.items())


@settings(max_examples=150, deadline=None)
@given(option_sets())
def test_there_and_back(given):
    config = from_options(RatingsConfig, given)
    for all in (False, True):
        options = to_options(config, all=all)
        assert from_options(RatingsConfig, options) == config
        stated = {name: value for name, value in options.items() if value is not None}  # TOML has no null
        assert from_options(RatingsConfig, tomllib.loads(to_toml(stated))) == config
    dumped = json.loads(json.dumps(config.model_dump(mode="json")))
    assert validated(RatingsConfig, dumped) == config
    assert from_options(RatingsConfig, {f"--{name.replace('_', '-')}": value for name, value in given.items()}) == config


@settings(max_examples=50, deadline=None)
@given(option_sets())
def test_what_was_given_is_in_the_config_or_was_the_default(given):
    options = to_options(from_options(RatingsConfig, given), all=True)
    for name, value in given.items():
        if name not in ("anchors", "columns"):  # which may be given in several ways
            assert options[name] == value


def test_only_what_differs_is_listed():
    assert to_options(RatingsConfig()) == {}
    assert to_options(from_options(RatingsConfig, {"lr": 0.01, "seed": 3, "anchors": 15})) == {"seed": 3}
    assert to_options(from_options(RatingsConfig, CD | {"ridge": 7.0, "epochs": 3})) == CD | {"epochs": 3}


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_all_options_of_every_task_can_be_given_again(task):
    config = task.Config()
    assert from_options(task.Config, to_options(config, all=True)) == config


# Errors -------------------------------------------------------------------------------------------------------------------


def refused(given, kind=RatingsConfig):
    with pytest.raises(ConfigError) as caught:
        from_options(kind, given)
    return str(caught.value), caught.value.name


def test_an_unknown_option_suggests_near_ones():
    assert refused({"l1_pnalty": 1}) == (
        "there is no option 'l1_pnalty'; did you mean l1_penalty or l2_penalty or l0_penalty?",
        "l1_pnalty",
    )
    text, _ = refused({"--embeding-dim": 8})
    assert "did you mean embedding_dim" in text
    text, _ = refused({"zzz": 1})
    assert all(name in text for name in options_of(RatingsConfig))


@pytest.mark.parametrize(
    ("given", "name", "owner"),
    [
        *((CD, name, "--solver stochastic") for name in ("l1_penalty", "lr", "optimizer", "engine", "device", "init")),
        *((ONLINE, name, "--solver stochastic") for name in ("l1_penalty", "polish", "max_nonzeros", "anchor_penalty")),
        (STOCHASTIC, "ridge", "--solver coordinate_descent and --solver online"),
        (STOCHASTIC, "unobserved_weight", "--solver coordinate_descent"),
        (STOCHASTIC, "test", "--solver online"),
        (ONLINE, "unobserved_weight", "--solver coordinate_descent"),
        (ONLINE, "budget", "--solver stochastic and --solver coordinate_descent"),
    ],
)
def test_an_option_of_another_solver_names_its_owner(given, name, owner):
    leaf = options_of(RatingsConfig)[name]
    text, wrong = refused(given | {name: leaf.field.default})
    solver = given.get("solver", "stochastic")
    assert text == f"--{name.replace('_', '-')} is an option of {owner}; this run has --solver {solver}"
    assert wrong == name


def test_no_option_of_another_solver_is_taken():
    """Whatever the solver, each option is either one of its own or an error."""
    known = options_of(RatingsConfig)
    for solver in known["solver"].choices:
        for name in known.keys() - chosen_options(RatingsConfig, {"solver": solver}).keys():
            text, _ = refused({"solver": solver, name: known[name].field.default})
            assert f"this run has --solver {solver}" in text


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"anchor_penalty": 0.1}, "anchor_penalty is for --anchors auto, not 15; leave --anchor-penalty out"),
        ({"growth": "trend", "anchors": (9, 8)}, "growth is for --anchors auto, not 9,8; leave --growth out"),
        ({"l0_penalty": 1.0, "anchors": 9, "solver": "stochastic"},
         "l0_penalty is for --anchors auto, not 9; leave --l0-penalty out, or use --solver coordinate_descent or online"),
        ({"anchors": "auto", "anchor_step": 2}, "anchor_step is for --growth trend, not plateau; leave --anchor-step out"),
        ({"schedule": "cosine", "halve_every": 9},
         "halve_every is for --schedule halving, not cosine; leave --halve-every out"),
        ({"optimizer": "sgd", "eps": 1e-3}, "eps is for --optimizer yogi or adam, not sgd; leave --eps out"),
        ({"alpha": 0.5}, "alpha is for --embedding mixed, not anchor; leave --alpha out"),
        ({"embedding": "full", "init": "dense"}, "init is for --embedding anchor, not full; leave --init out"),
        (ONLINE | {"on_error": "skip"},
         "on_error is for --solver stochastic or coordinate_descent, not online; leave --on-error out"),
        (ONLINE | {"split": "90/10"}, "split is for --solver stochastic or coordinate_descent, not online; leave --split out"),
    ],
)  # fmt: skip
def test_an_option_that_would_have_no_effect_is_an_error(given, wrong):
    text, name = refused(given)
    assert text == wrong
    assert text.startswith(name)


def test_an_option_without_effect_in_the_usual_solver_takes_another():
    assert from_options(RatingsConfig, {"l0_penalty": 1.0}).solver.name == "coordinate_descent"
    assert from_options(RatingsConfig, {"l0_penalty": 1e-9, "anchors": "auto"}).solver.name == "stochastic"


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"epochs": 0}, "epochs must be ≥ 1, got 0"),
        ({"lr": -0.5}, "lr must be ≥ 0, got -0.5"),
        ({"eps": 0}, "eps must be > 0, got 0"),
        ({"l1_warmup": 2}, "l1_warmup must be ≤ 1, got 2"),
        ({"polish": 1.0}, "polish must be < 1, got 1.0"),
        (CD | {"ridge": -1}, "ridge must be ≥ 0, got -1"),
        ({"anchors": 0}, "anchors must be ≥ 1, got 0; start with 10"),
        ({"anchors": ()}, "anchors must be ≥ 1, got none; start with 10"),
        ({"anchors": (1, 2, 3)}, "3 numbers of anchors for 2 tables; give one, or one for each"),
        ({"anchors": "a,b"}, "anchors 'a,b' is not a number of anchors; say 15, or 40,16 for two tables, or auto"),
        ({"anchors": 1.5}, "anchors 1.5 is not a whole number"),
        ({"epochs": 2.5}, "epochs 2.5 is not a whole number"),
        ({"epochs": "many"}, "epochs 'many' is not a whole number"),
        ({"lr": "fast"}, "lr 'fast' is not a number"),
        ({"lr": float("nan")}, "lr must be finite, got nan"),
        ({"biases": "perhaps"}, "biases 'perhaps' is not true or false"),
        ({"data": 3}, "data 3 is not text"),
        ({"schedule": "x"}, "schedule 'x' is none of: halving, cosine, constant"),
        ({"solver": "magic"}, "solver 'magic' is none of: auto, stochastic, coordinate_descent, online"),
        ({"solver": "magic", "lr": 1}, "solver 'magic' is none of: auto, stochastic, coordinate_descent, online"),
        ({"values": "int3"}, "values 'int3' is none of: auto, fp32, fp16, int8, int6, int5, int4"),
    ],
)
def test_bounds_and_kinds_say_what_was_given_and_what_is_allowed(given, wrong):
    assert refused(given)[0] == wrong


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_numpy_whole_numbers_are_numbers(kind):
    given = {"epochs": kind(3), "embedding_dim": kind(8), "anchors": kind(4), "seed": kind(0), "lr": kind(1)}
    config = from_options(RatingsConfig, given)
    assert config == from_options(RatingsConfig, {name: int(value) for name, value in given.items()})
    json.dumps(to_options(config, all=True))
    assert from_options(RatingsConfig, {"anchors": (kind(4), kind(5))}).anchors.anchors == (4, 5)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numpy_fractions_are_numbers(kind):
    config = from_options(RatingsConfig, {"lr": kind(0.25), "eps": kind(0.5), "biases": np.bool_(False)})
    assert config == from_options(RatingsConfig, {"lr": 0.25, "eps": 0.5, "biases": False})
    assert type(config.solver.optimizer.lr) is float


def test_a_config_cannot_be_changed_but_made_anew():
    config = RatingsConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.machine.seed = 3
    assert with_options(config, seed=3, data="x").machine.seed == 3
    assert config.machine.seed == 0
    with pytest.raises(ConfigError, match="seed must be ≥ 0, got -1"):
        with_options(config, seed=-1)


@pytest.mark.parametrize("place", [(), ("solver",), ("solver", "sparsity"), ("machine",)])
def test_a_field_that_is_not_known_is_refused_wherever_it_is(place):
    tree = RatingsConfig().model_dump(mode="json")
    inner = tree
    for part in place:
        inner = inner[part]
    inner["l1_penalti"] = 1
    with pytest.raises(ConfigError, match="there is no setting 'l1_penalti'"):
        validated(RatingsConfig, tree)


def test_two_options_of_one_name_are_an_error_of_the_programmer():
    class Inner(Config):
        seed: int = option(0, "One.")

    class Outer(Config):
        seed: int = option(0, "Two.")
        inner: Inner = Inner()

    with pytest.raises(TypeError, match=r"Outer has two options 'seed': seed and inner\.seed"):
        options_of(Outer)


# Defaults that follow from the data ---------------------------------------------------------------------------------------


def test_defaults_come_behind_what_was_given_and_only_where_they_count():
    plain = from_options(RatingsConfig, {"batch_size": 7}, LARGE_DEFAULTS)
    assert to_options(plain) == {"batch_size": 7, "l1_penalty": 2e-6, "halve_every": 200_000}
    cosine = from_options(RatingsConfig, {"schedule": "cosine"}, LARGE_DEFAULTS)
    assert to_options(cosine) == {"schedule": "cosine", "batch_size": 1024, "l1_penalty": 2e-6}
    trend = from_options(RatingsConfig, {"anchors": "auto", "growth": "trend"}, LARGE_DEFAULTS)
    assert to_options(trend).items() >= {"initial_anchors": 20, "anchor_step": 2}.items()
    assert from_options(RatingsConfig, CD, LARGE_DEFAULTS) == from_options(RatingsConfig, CD)
    for config in (plain, cosine, trend):
        assert from_options(RatingsConfig, to_options(config)) == config


# Run folders --------------------------------------------------------------------------------------------------------------


def folder_with(path, content):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(content))
    return RunFolder(path)


def test_a_run_folder_gives_its_config_back(tmp_path):
    config = from_options(RatingsConfig, CD | {"anchors": (6, 5), "columns": "a,b,c"})
    (tmp_path / "r").mkdir()
    RunFolder(tmp_path / "r").create(config, {"examples": 3, "sha256": "x"}, [])
    assert RunFolder(tmp_path / "r").open() == (config, {"examples": 3, "sha256": "x"})


def test_a_run_of_an_older_antembed_is_refused_in_a_sentence(tmp_path):
    old = {"task": "recommend", "data": "r.csv", "embedding": "anchor", "anchors": [15, 15], "l1": 1e-4, "seed": 0}
    run = folder_with(tmp_path / "r", old)
    wrong = r"r/config\.json has no version, this antembed reads version 2; train the run anew"
    for read in (run.raw, run.open, run.task, run.check_finished, run.result):
        with pytest.raises(RunError, match=wrong):
            read()
    with pytest.raises(RunError, match="was not written by antembed, and is left alone"):
        run.create(RatingsConfig(), {}, [], resume=True)


def test_a_run_of_a_newer_antembed_or_of_a_task_that_is_gone(tmp_path):
    with pytest.raises(RunError, match=r"has version 3, this antembed reads version 2"):
        folder_with(tmp_path / "new", {"version": 3}).open()
    gone = {"version": 2, "config": {"task": "chess"}, "data": {}}
    with pytest.raises(
        RunError, match="is a run of the task 'chess'; there are: recommend, recommend-events, classify, classify-ngrams"
    ):
        folder_with(tmp_path / "chess", gone).open()


def test_a_setting_that_is_not_known_in_a_run_is_named(tmp_path):
    tree = TextConfig().model_dump(mode="json")
    tree["solver"]["train"]["batch"] = 3
    run = folder_with(tmp_path / "r", {"version": 2, "config": tree, "data": {}})
    with pytest.raises(RunError, match=r"config\.json: there is no setting 'batch'; train the run anew"):
        run.open()
