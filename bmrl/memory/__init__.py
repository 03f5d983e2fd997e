"""How much memory a recipe will take, before a card is hired for the night: no weights, no GPU, no hub.

``formulas`` counts bytes, ``estimate`` puts a recipe's parts together, ``remedy`` finds what makes them fit.
"""

from bmrl.memory.estimate import CARD_GB, CUDA_PROGRAM_GB, Estimate, Part, estimate, figures, in_flight, most_rows
from bmrl.memory.remedy import advice, too_small

__all__ = [
    "CARD_GB",
    "CUDA_PROGRAM_GB",
    "Estimate",
    "Part",
    "advice",
    "estimate",
    "figures",
    "in_flight",
    "most_rows",
    "too_small",
]
