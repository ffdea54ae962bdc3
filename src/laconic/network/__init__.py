"""Networks as models: links in levels, flows and packets on them, and the interfaces of this host."""
