"""How a strategy is written: literals, knobs, words, and the grammar that reads them."""
