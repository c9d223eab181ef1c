"""What tests of the command line share: a call as a user types it, and a file of ratings with a known answer."""

from pathlib import Path
from unittest import mock

from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.recommend.synthetic import planted, ratings

# Options of a quick stochastic run on the ratings of `write_ratings`.
QUICK = ("--epochs", 4, "--batch-size", 128, "--embedding-dim", 8, "--anchors", "6,5", "--lr", 0.03, "--l1-penalty", 1e-4)


def call(*arguments: object, code: int = 0, stdin: str | None = None) -> str:
    """What a command prints on stdout; what it raises is raised."""
    words = [str(argument) for argument in arguments]
    with mock.patch("sys.argv", ["antembed", *words]):
        result = CliRunner().invoke(app, words, input=stdin)
    if isinstance(result.exception, ValueError | OSError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def refusal(*arguments: object) -> str:
    """What a wrong call is told, in one line; its exit code is 2."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, (result.output, result.exception)
    return " ".join(result.stderr.replace("│", " ").split())


def write_ratings(file: Path) -> Path:
    users, items = planted(200, 8, anchors=4, exponent=0.3, seed=0), planted(80, 8, anchors=4, exponent=0.3, seed=1)
    r = ratings(users, items, 12_000, noise=0.2, seed=2)
    rows = (f"u{u},{i},{v:.4f}" for u, i, v in zip(r.users, r.items, r.values, strict=True))
    file.write_text("user,item,rating\n" + "\n".join(rows))
    return file
