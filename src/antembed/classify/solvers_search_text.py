"""Text without options: n-grams in the smallest file within the tolerance, as options of their solver."""

from antembed.classify.dataset import DocumentExamples, TextSplits
from antembed.classify.documents import Documents
from antembed.classify.ngrams_config import NgramConfig
from antembed.classify.search import NgramSearch
from antembed.config_tolerance import parse_tolerance
from antembed.files import JSON
from antembed.train.config_shared import TaskConfig
from antembed.train.options import Options
from antembed.train.solvers_search_cache import Report, cached
from antembed.train.task import Splits

TEXT_TOLERANCE = "0.5%"


class SearchText:
    """Text: n-grams, by their accuracy, in the smallest file within the tolerance."""

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        assert isinstance(splits, TextSplits)
        assert isinstance(config, NgramConfig)
        fixed = {"orders": config.solver.ngrams} if "ngrams" in given else {}
        tolerance = str(given.get("tolerance", TEXT_TOLERANCE))
        size = {"budget": config.solver.budget} if "budget" in given else {"tolerance": tolerance}
        read = {"data": splits.digest, "seed": config.machine.seed, "max_length": config.input.max_length}
        found = cached(
            {"search": "ngrams", **read, "columns": [config.input.text, config.input.label], **fixed, **size},
            lambda: self._search(splits, config.machine.seed, fixed, size, report),
            report,
        )
        return {**found["options"], "hold_out": False}

    def _search(self, splits: TextSplits, seed: int, fixed: JSON, size: JSON, report: Report) -> JSON:
        train, validation = (_documents(part) for part in (splits.train, splits.validation))
        search = NgramSearch.of(train, validation, seed)
        best = search.settings(fixed, report)
        found = {
            "ngrams": best.orders,
            "repeats": best.repeats,
            "prefix": best.prefix,
            "ridge": best.ridge,
            "rarity": best.rarity,
            "noise": best.noise,
        }
        options: JSON = found | size
        if "tolerance" not in size:
            return {"options": options}
        amount, accuracy, dense = search.size(best, parse_tolerance(options.pop("tolerance")), report)
        report(f"searched: {amount:,} bytes, validation accuracy {accuracy:.4f}; without a size {dense:.4f}")
        return {"options": options | {"budget": f"{amount}B"}, "dense_accuracy": dense}


def _documents(part: DocumentExamples) -> Documents:
    assert part.documents is not None
    return part.documents.take(part.rows)
