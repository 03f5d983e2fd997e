"""bmrl: multi-turn reinforcement learning of LLM agents over mixed interaction budgets."""

import os

# Before anything imports torch. An OpenMP thread that spins while it waits starves every other
# process on a small machine: a decode step became 28 times slower beside one competing process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Environments live in worker processes; the tokenizers library warns about its own threads
# otherwise.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# torch aligns its blocks on a CPU, and a freed aligned block is not found again by the C library: an update took twice
# what torch holds. Aligned to huge pages, blocks are; and they cost less to fill.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"
