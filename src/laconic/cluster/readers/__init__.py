"""Readers of traces: jobs, hosts and speeds that others have recorded."""
