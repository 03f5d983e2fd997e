"""What of this machine bmrl can use, what is wrong with it, and what to do about that: ``bmrl doctor``."""

from bmrl.doctor.examination import examine
from bmrl.doctor.finding import Finding

__all__ = ["Finding", "examine"]
