"""Network models: links in levels and graphs, flows and packets on them; and the network interfaces of this host."""
