"""ALFWorld's household text games in plain Python: games, engine, plans, exploring expert.

The games that ship with bmrl are *generated ALFWorld-format games*: made by `generator` from
ALFWorld's own tables and room layouts. They are not ALFWorld's own set of games, which
`AlfworldEnv` reads as well.
"""

from bmrl.envs.alfworld.env import AlfworldEnv

__all__ = ["AlfworldEnv"]
