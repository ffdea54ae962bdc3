"""Network models: links in levels, flows and packets on them; and the network interfaces of this host."""
