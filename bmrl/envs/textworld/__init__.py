"""TextWorld's own games: their rules and generators are TextWorld's, their texts and plans are bmrl's.

Three worlds: cooking, coin collector, treasure hunter. Playing needs the package ``textworld``; nothing is compiled.
"""

from bmrl.envs.textworld.env import CoinEnv, CookingEnv, TreasureEnv

__all__ = ["CoinEnv", "CookingEnv", "TreasureEnv"]
