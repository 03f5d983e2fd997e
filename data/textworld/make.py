"""Makes the embedded TextWorld games and their manifest anew, bit for bit; takes some minutes.

pip install 'bmrl[textworld]' && python data/textworld/make.py data/textworld
"""

import sys
from pathlib import Path

from bmrl.envs.textworld.splits import write_embedded

if __name__ == "__main__":
    write_embedded(Path(sys.argv[1]))
