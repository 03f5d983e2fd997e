"""The recipe: one YAML file per experiment, complete in itself.

`schema` says which keys there are, `rules` which of them contradict each other, `reader` turns YAML
into data with places, `messages` words the mistakes. Only ``run``, ``cli`` and what they ask (``check``,
`packaged`, `target`) read a recipe;
everything else takes plain arguments.
"""

from bmrl.recipe.load import load, unknown_splits
from bmrl.recipe.schema import (
    AdaptiveBudget,
    Algorithm,
    BudgetSection,
    ChatSection,
    CurriculumBudget,
    EnvSection,
    FixedBudget,
    Gigpo,
    LogUniformBudget,
    LoraSection,
    MixBudget,
    ModelSection,
    NewModel,
    OptimizerSection,
    Recipe,
    ReinforcePP,
    RelativeBudget,
    RewardSection,
    RolloutSection,
    SftSection,
    TrainBudget,
    TrainSection,
    TruncationSection,
    UniformBudget,
    resolved,
)

__all__ = [
    "AdaptiveBudget",
    "Algorithm",
    "BudgetSection",
    "ChatSection",
    "CurriculumBudget",
    "EnvSection",
    "FixedBudget",
    "Gigpo",
    "LogUniformBudget",
    "LoraSection",
    "MixBudget",
    "ModelSection",
    "NewModel",
    "OptimizerSection",
    "Recipe",
    "ReinforcePP",
    "RelativeBudget",
    "RewardSection",
    "RolloutSection",
    "SftSection",
    "TrainBudget",
    "TrainSection",
    "TruncationSection",
    "UniformBudget",
    "load",
    "resolved",
    "unknown_splits",
]
