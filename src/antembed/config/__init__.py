"""What decides a run: small validated configs, composed. Options of the command line and of Python are their fields."""

from antembed.config.base import Config, ConfigError, option
from antembed.config.options import Option, Options, from_options, options_of, to_options, with_options
from antembed.config.shared import (
    AnchorConfig,
    EmbeddingConfig,
    EmbeddingTaskConfig,
    ExportConfig,
    MachineConfig,
    TaskConfig,
)
from antembed.config.solvers import (
    CoordinateDescentConfig,
    GrowthConfig,
    OnlineConfig,
    OptimizerConfig,
    SolverConfig,
    SparsityConfig,
    StochasticConfig,
    TrainConfig,
)

__all__ = [
    "AnchorConfig",
    "Config",
    "ConfigError",
    "CoordinateDescentConfig",
    "EmbeddingConfig",
    "EmbeddingTaskConfig",
    "ExportConfig",
    "GrowthConfig",
    "MachineConfig",
    "OnlineConfig",
    "OptimizerConfig",
    "Option",
    "Options",
    "SolverConfig",
    "SparsityConfig",
    "StochasticConfig",
    "TaskConfig",
    "TrainConfig",
    "from_options",
    "option",
    "options_of",
    "to_options",
    "with_options",
]
