"""What did training improve: single decisions, recovery from errors, or endurance? No torch; see docs/diagnosis.md."""

from bmrl.diagnose.bank import Bank
from bmrl.diagnose.bank import read as read_bank
from bmrl.diagnose.diagnosis import Diagnosis, diagnose
from bmrl.diagnose.player import Player
from bmrl.diagnose.tables import tables
from bmrl.diagnose.world import Settings, World

__all__ = ["Bank", "Diagnosis", "Player", "Settings", "World", "diagnose", "read_bank", "tables"]
