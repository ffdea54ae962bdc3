"""Pipelines: what each device computes in which order, as data that is verified, priced and carried out."""
