"""Training: evolution strategies and GRPO in three worlds, with one configuration, budget and run folder.

from pathlib import Path

from esth.training import ESConfig, train

run = train(ESConfig(model="tiny-3", sigma=0.01), Path("run"))
"""

from esth.training.config import ESConfig, GRPOConfig, TrainConfig, read_config
from esth.training.folder import Point, RunFolder
from esth.training.run import last_center, rebuild, train

__all__ = [
    "ESConfig",
    "GRPOConfig",
    "Point",
    "RunFolder",
    "TrainConfig",
    "last_center",
    "read_config",
    "rebuild",
    "train",
]
