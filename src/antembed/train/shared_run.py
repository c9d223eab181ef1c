"""Training in several processes: which options go with it, how its model is built, and the training itself."""

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from antembed.files import JSON
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.sharded_embedding import drawn_by_block, shard_
from antembed.train.config import TaskConfig
from antembed.train.model import TaskModel
from antembed.train.options import ConfigError, Options, options_of, to_options
from antembed.train.processes import one_copy
from antembed.train.run_folder import RunFolder
from antembed.train.solver import Callback, Solver, ignore, make_solver
from antembed.train.solver_config import StochasticConfig
from antembed.train.task import Part, Rows, Splits, Task

EMBEDDINGS = ("anchor", "full")
LOCAL = ("data", "test", "threads")  # options that are a machine's own
PARTS: tuple[Part, ...] = ("train", "validation", "test")
DESCENT = "coordinate_descent"
# Options of several processes, where they are not given. The number of pieces does not depend on that of processes.
USUAL: Options = {"solver": "stochastic", "engine": "torch", "sparsify": "prox", "pieces": 8}


def shared_options(task: Task, given: Options) -> Options:
    """The options with those that several processes need; another solver is an error."""
    known = options_of(task.Config)
    solver = str(given.get("solver", "auto"))
    if "tolerance" in known and (solver == DESCENT or (solver == "auto" and (given.get("tolerance") or "pieces" not in known))):
        return dict(given) | ({"solver": DESCENT} if "pieces" in known else {})
    if "pieces" not in known or solver not in ("auto", "stochastic"):
        what = f"--solver {solver}" if "pieces" in known else task.name
        raise ConfigError(
            f"under torchrun tables are trained by --solver stochastic or {DESCENT}; {what} is for one process", "solver"
        )
    usual = {name: value for name, value in USUAL.items() if name in known}
    return usual | {name: value for name, value in given.items() if not (name == "solver" and value == "auto")}


def check_options(task: Task, config: TaskConfig, ranks: Ranks) -> None:
    """Raise if something is asked for that several processes cannot do."""
    config.solver.check_processes(ranks.size)
    if not isinstance(config.solver, StochasticConfig):
        return
    under = f"under torchrun ({ranks.size} processes)"
    if config.embedding_name not in EMBEDDINGS:
        raise ConfigError(f"{under} embedding {config.embedding_name} is not possible; use anchor or full", "embedding")
    if task.pretraining(config) is not None:
        raise ConfigError(f"{under} an --anchor-init that trains a model first is not possible; use frequency", "anchor_init")


def check_alike(config: TaskConfig, ranks: Ranks) -> None:
    """Raise in every process if one was given other options than rank 0; where the data are may differ."""
    own: JSON = json.loads(json.dumps(to_options(config, all=True), default=str))
    first = ranks.from_first({"options": own})["options"]
    names = sorted(name for name in first if name not in LOCAL)
    wrong = next((number for number, name in enumerate(names) if own.get(name) != first[name]), -1)
    for rank, number in enumerate(ranks.gather(torch.tensor(wrong)).tolist()):
        if number >= 0:
            name = names[number]
            here = f": {first[name]} there, {own.get(name)} here" if rank == ranks.rank else ""
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} of rank {rank} is not that of rank 0{here}; give every rank the same options", name)


def build(task: Task, config: TaskConfig, splits: Splits, ranks: Ranks | None) -> TaskModel:
    """A model. With `ranks`, of each AnchorEmbedding this process has only its own rows of T. They start as in one process that
    cuts its batches into pieces, too: there, blocks of rows have generators of their own."""
    if ranks is not None:
        digest = int(splits.digest[:12], 16)
        ranks.check_same({"examples": splits.count, "the digest of the data": digest}, "give every rank the same data")
    if not isinstance(config.solver, StochasticConfig) or (ranks is None and config.solver.train.pieces == 1):
        return task.build(config, splits)
    with drawn_by_block(config.machine.seed, ranks):
        return task.build(config, splits)


def share_rows(splits: Splits, ranks: Ranks) -> None:
    """Which rows are in which part: once on a machine, not once a process."""
    for name in PARTS:
        part = splits.part(name)
        if isinstance(part, Rows):
            setattr(splits, name, part.with_rows(one_copy(ranks, partial(np.asarray, part.rows), len(part), part.rows.dtype)))


def train_shared(
    task: Task,
    config: TaskConfig,
    model: TaskModel,
    splits: Splits,
    folder: RunFolder,
    ranks: Ranks,
    create: Callable[[], None],
    resume: bool,
    callback: Callback,
) -> Solver:
    """Cut the tables (but for coordinate descent), `create` the folder, train; → the solver. The tables stay cut."""
    if isinstance(config.solver, StochasticConfig):
        shard_(model, ranks)
        share_rows(splits, ranks)
    solver = make_solver(task, config, model, splits, ranks)
    if config.auto and any(len(free) for free in task.free_entries(splits, model).values()):
        raise ConfigError(
            f"under torchrun ({ranks.size} processes) anchors auto goes without relations; give --anchors", "anchors"
        )
    ranks.on_first(create)
    if resume and solver.storage.exists(folder.last):
        solver.load_state_dict(solver.storage.load(folder.last))
    ranks.on_first(lambda: folder.forget_after(solver.epoch))
    for record in solver.fit(folder, callback if ranks.first else ignore):
        if ranks.first:
            folder.log(record)
        solver.storage.save(folder.last, solver.state_dict())
    return solver
