"""Sentences that give the same parameters on virtual clients, between processes, and under Flower."""

SENTENCES = [
    "fedavg(clients=3)",
    'fedavg(clients=3) / stc(0.3)+ef / server(down="stc(0.3)")',
    "scaffold(clients=3) / topk(0.3)+ef / server(down=int8)",
    "fednova(clients=2, epochs=2) / stc(0.2)+ef",
    "fedopt(clients=3, optimizer=yogi)",
    "apf(clients=6, every=1)",
    "fedbuff(1, at_work=1) / topk(0.3)+ef",
]
