"""What the base install leaves out: which extra brings a package that is missing."""

EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "polars": "cli",
    "zstandard": "cli",
    "numba": "cli",  # look-up does without it, and is faster with the extra `fast`
    "torch": "train",
    "scipy": "train",
    "pydantic": "train",
    "tokenizers": "text",
    "sklearn": "text",
    "onnx": "onnx",
    "onnxscript": "onnx",  # torch.onnx.export needs it
    "transformers": "huggingface",
    "matplotlib": "plot",
    "optuna": "sweep",
}


def install(extra: str) -> str:
    """How to install an extra; antembed is on no package index."""
    return f"in a clone of antembed, run: pip install '.[{extra}]'"


def explained(error: ImportError, wanted: str, extra: str = "") -> ImportError:
    """The error; or, where the package belongs to an extra, one that says what needs it and how to install it. `extra`: the
    one that has all that is needed, not only this package."""
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS:
        return error
    text = f"{wanted} needs {package}, which is not installed; {install(extra or EXTRAS[package])}"
    return ImportError(text, name=error.name)
