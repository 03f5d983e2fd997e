"""A trained policy for programs other than bmrl: merged weights, a GGUF file, and the card that goes with them."""
