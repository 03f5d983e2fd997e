"""bmrl: multi-turn reinforcement learning of LLM agents over mixed interaction budgets."""

import os

# Before anything imports torch. An OpenMP thread that spins while it waits starves every other
# process on a small machine: a decode step became 28 times slower beside one competing process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Environments live in worker processes; the tokenizers library warns about its own threads
# otherwise.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

__version__ = "0.1.0"
