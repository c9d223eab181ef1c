"""Training in several processes: the process group, options and models of all ranks, arrays that a machine holds once.

At the end of a run rank 0 evaluates and writes, and the others send it the rows that it looks up, so no process holds all of T.
Before each exchange rank 0 says which table is read and how; the others wait for that.
"""

import importlib
import json
import os
import secrets
import socket
import zlib
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from antembed.data.text_file import PARTIAL
from antembed.files import JSON, default_cache
from antembed.layer.sharded.collectives import RankError, Ranks
from antembed.layer.sharded.sharded_embedding import drawn_by_block, sharded_tables
from antembed.layer.sharded.sharded_table import ADD_UP, LOG_TOTAL, LOOK_UP, ShardedRowTable
from antembed.train.checkpoint import RowBlocks
from antembed.train.config import SolverConfig, StochasticConfig, TaskConfig
from antembed.train.examples import RowExamples
from antembed.train.model import TaskModel
from antembed.train.options import AUTO, ConfigError, Options, members, options_of, to_options, typed
from antembed.train.task import Splits, Task


def one_copy(ranks: Ranks, make: Callable[[], np.ndarray], n: int, kind: np.dtype) -> np.ndarray:
    """make(), of n numbers of this kind, read-only; called by all processes, `make` by the first of each machine. The file is
    removed as soon as all have opened it; the mapping stays."""
    if ranks.size == 1 or n == 0:
        return make()
    hosts = ranks.gather(torch.tensor(zlib.crc32(socket.gethostname().encode()))).tolist()
    maker = hosts.index(hosts[ranks.rank])
    token = ranks.from_first({"token": secrets.token_hex(8)})["token"]
    file = default_cache() / f"{PARTIAL}{token}-{maker}"  # what a killed process leaves is removed with others of this name
    problem: OSError | None = None
    if maker == ranks.rank:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            make().tofile(file)
        except OSError as error:
            problem = error
    failed = ranks.gather(torch.tensor(int(problem is not None))).tolist()
    if any(failed):
        who = f"rank {failed.index(1)} could not write the order of the examples" + (f" ({problem})" if problem else "")
        raise RankError(f"{who}; set ANTEMBED_CACHE to another folder") from problem
    found = np.memmap(file, kind, "r", shape=(n,)).view(np.ndarray)
    ranks.wait()
    if maker == ranks.rank:
        file.unlink()
    return found


DONE, FAILED = -1, -2  # instead of the number of a table
Result = TypeVar("Result")


def on_first_served(model: nn.Module, ranks: Ranks, work: Callable[[], Result]) -> Result | None:
    """`work` on rank 0, with a model whose tables can be looked up and counted (not trained); None elsewhere, when it is
    done. What goes wrong on rank 0 is raised everywhere."""
    model.eval()  # rows are up to date from here on
    tables = list(sharded_tables(model).values())
    if not ranks.first:
        _serve(tables, ranks)
        return None
    for number, table in enumerate(tables):
        table.ask = partial(_say, ranks, number)
    try:
        result = work()
    except RankError:
        raise  # the other ranks are gone
    except BaseException:
        _say(ranks, FAILED, 0)
        raise
    finally:
        for table in tables:
            table.ask = None
    _say(ranks, DONE, 0)
    return result


def rows_of_shared(model: nn.Module) -> dict[str, RowBlocks]:
    """The shared tables of a model, by their names in a checkpoint; none if it is not shared."""
    return {
        f"model/{name}.weight": RowBlocks(table.weight.dtype, (table.num_embeddings, table.embedding_dim), table.blocks)
        for name, table in sharded_tables(model).items()
    }


def _say(ranks: Ranks, number: int, how: int) -> list[int]:
    """What rank 0 says, in every process."""
    said = torch.tensor([number, how])
    with ranks.reporting("asking rank 0"):
        dist.broadcast(said, group=ranks.group, group_src=0)
    return [int(value) for value in said]


@torch.no_grad()
def _serve(tables: list[ShardedRowTable], ranks: Ranks) -> None:
    nothing = torch.empty(0, dtype=torch.long)
    while (said := _say(ranks, DONE, 0))[0] >= 0:
        table, how = tables[said[0]], said[1]
        if how == LOOK_UP:
            table(nothing)
        elif how == ADD_UP:
            table.count_by_column()
        else:
            assert how == LOG_TOTAL
            table.serve_log_total()
    if said[0] == FAILED:
        raise RankError("rank 0 has failed after training; its error says why")


TIMEOUT = 600.0  # seconds
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether this process is one of several, by the variables that torchrun sets."""
    return all(name in os.environ for name in NEEDED)


def restarted() -> bool:
    """Whether torchrun has started this program again after a failure."""
    return int(os.environ.get(RESTARTS, "0")) > 0


def start(timeout: float | None = None, backend: str = "gloo") -> Ranks:
    """Join the other processes; a rank that does not come or does not answer within `timeout` seconds is an error. Default:
    ANTEMBED_TIMEOUT, or ten minutes."""
    seconds = float(os.environ.get("ANTEMBED_TIMEOUT", TIMEOUT)) if timeout is None else timeout
    if dist.is_initialized():
        return Ranks()
    if not launched():
        missing = ", ".join(name for name in NEEDED if name not in os.environ)
        raise RankError(f"{missing} not set: start the program with torchrun --nproc-per-node N")
    # Default arguments there are the process group, if there is one when it is imported: its threads could not be ended then.
    importlib.import_module("torch.distributed.nn.functional")
    wait = timedelta(seconds=seconds)
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=wait))
        # torchrun keeps its store over restarts, and the addresses of processes that are gone in it.
        attempt = dist.PrefixStore(f"attempt {os.environ.get(RESTARTS, '0')}", store)
        dist.init_process_group(backend, store=attempt, rank=rank, world_size=size, timeout=wait)
    except RuntimeError as error:
        own, ranks, address, port = (os.environ[name] for name in NEEDED)
        raise RankError(
            f"rank {own} of {ranks}: not all ranks came to {address}:{port} within {seconds:g} s "
            f"({str(error).splitlines()[0][:200]}); start the missing ones, or set GLOO_SOCKET_IFNAME to the interface "
            "that the machines share"
        ) from error
    return Ranks()


def stop() -> None:
    """Leave the process group. Its threads end here: one that waits for Python when that shuts down aborts the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


EMBEDDINGS = ("anchor", "full")  # whose rows processes can share
LOCAL = ("data", "test", "threads")  # options that are a machine's own
# Options of several processes, where they are not given. `pieces` does not depend on the number of processes.
USUAL: Options = {"engine": "torch", "sparsify": "prox", "pieces": 8}


def shared_options(task: Task, given: Options) -> Options:
    """The options with those that several processes need; a solver that is for one process is an error."""
    known, asked = options_of(task.Config), given.get("solver", AUTO)
    solvers = {each.model_fields["name"].default: each for each in members(task.Config.model_fields["solver"])}
    possible = {name: each for name, each in solvers.items() if issubclass(each, SolverConfig) and each.shared}
    owners = [known[name].owners for name in given if name in known and known[name].owners]
    fitting = [name for name in possible if asked == name or (asked == AUTO and all(name in each for each in owners))]
    if not fitting and (asked != AUTO or not possible):
        other = f"give --solver {' or '.join(possible)}; --solver {asked}" if possible else task.name
        raise ConfigError(f"under torchrun {other} is for one process", "solver")
    solver = (fitting or [*possible])[0]
    usual = dict(USUAL) if issubclass(possible[solver], StochasticConfig) else {}
    usual |= {"solver": solver} if "solver" in known else {}
    return usual | {name: value for name, value in given.items() if name != "solver"}


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
            raise ConfigError(
                f"{typed(name)} of rank {rank} is not that of rank 0{here}; give every rank the same options", name
            )


def build(task: Task, config: TaskConfig, splits: Splits, ranks: Ranks | None) -> TaskModel:
    """A model. With `ranks`, of each AnchorEmbedding this process has only its own rows of T. They start as in one process that
    shares its batches, too: there, blocks of rows have generators of their own."""
    if ranks is not None:
        digest = int(splits.digest[:12], 16)
        ranks.check_same({"examples": splits.count, "the digest of the data": digest}, "give every rank the same data")
    if not isinstance(config.solver, StochasticConfig) or (ranks is None and config.solver.train.pieces == 1):
        return task.build(config, splits)
    with drawn_by_block(config.machine.seed, ranks):
        return task.build(config, splits)


def share_rows(splits: Splits, ranks: Ranks) -> None:
    """Which rows are in which part: once on a machine, not once a process."""
    for name in ("train", "validation", "test"):
        part = vars(splits)[name]
        if isinstance(part, RowExamples):
            setattr(splits, name, part.with_rows(one_copy(ranks, partial(np.asarray, part.rows), len(part), part.rows.dtype)))
