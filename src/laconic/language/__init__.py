"""How a strategy is written: its words, selectors and conditions, and the grammar that reads them."""
