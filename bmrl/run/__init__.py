"""Composition root: recipe -> objects -> loop. The only place that hands a recipe's values on."""

from bmrl.run.diagnose import diagnose_targets
from bmrl.run.endpoint import evaluate_endpoint
from bmrl.run.evaluate import evaluate
from bmrl.run.export import export
from bmrl.run.sft import sft
from bmrl.run.train import train

__all__ = ["diagnose_targets", "evaluate", "evaluate_endpoint", "export", "sft", "train"]
