"""Advice before anything is paid: what each strategy would take on a model, machines and a network."""
