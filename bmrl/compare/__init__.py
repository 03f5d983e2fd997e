"""Two or more evaluations, paired by task: who is better at which budget, and by how much. No torch."""

from bmrl.compare.choice import choose, refuse_other_recipe, unlike
from bmrl.compare.pairs import Side, compare, load
from bmrl.compare.significance import holm, sign_flip
from bmrl.compare.table import table

__all__ = ["Side", "choose", "compare", "holm", "load", "refuse_other_recipe", "sign_flip", "table", "unlike"]
