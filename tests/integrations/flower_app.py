"""A Flower app, as `flwr run` takes it: WAY says which way of the adapter it goes, OUT where its outcome is written."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from laconic.federated.federation import Federation
from laconic.federated.layout import Layout
from laconic.federated.local import Local, Trainer, Work
from laconic.federated.participation import client_draw
from laconic.integrations.flower import RuleStrategy, client_app, compression, run_rule
from laconic.integrations.flower_records import payload_bytes
from tests.federated.processes.inside import federation

SEED, STEPS, CLIENTS = 1, 3, 2
SENTENCES = {
    "scaffold": "scaffold(clients=2) / topk(0.3)+ef / server(down=int8)",
    "fedbuff": "fedbuff(1, at_work=1) / qsgd",
    "stc": 'fednova(clients=2, epochs=2) / stc(0.1)+ef / server(down="stc(0.1)")',
    "mod": "fedopt(clients=2, optimizer=momentum) / topk(0.3)+ef",
}
WAY, OUT = os.environ.get("WAY", "scaffold"), Path(os.environ.get("OUT", "."))
SENTENCE = SENTENCES[WAY]

setting = federation(STEPS, SEED, clients=CLIENTS, task="wide")
task, population = setting.learned, setting.population


def trains_as_it_likes(setting: Federation, words: str, seed: int) -> ClientApp:
    """Return a ClientApp that trains as it likes, and knows nothing of laconic but its mod."""
    app, population = ClientApp(), setting.population

    @app.train(mods=[compression(words, seed)])  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        trainer = Trainer(setting.learned, seed)
        arrays = message.content["arrays"]
        start = trainer.layout.join([torch.from_numpy(array.numpy().copy()) for array in arrays.values()])
        version = int(message.content["laconic"]["version"])
        draw = client_draw(seed, version, client)
        samples = population.shards[client]
        done = Local(trainer, client, samples, Work(1, 10, setting.rate), draw).descend(start)
        named = zip(arrays, trainer.layout.split(done.end), strict=True)
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(x.numpy()) for name, x in named}),
                "metrics": MetricRecord({"num-examples": len(samples)}),
            }
        )
        return Message(content, reply_to=message)

    return app


client = (
    trains_as_it_likes(setting, "topk(0.3)+ef", SEED) if WAY == "mod" else client_app(task, population, SENTENCE, SEED)
)
server = ServerApp()


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    bytes_of: list[tuple[int, int]] = []
    found: dict[str, Any]
    if WAY == "mod":
        model = task.build(SEED)
        strategy = _Counting(SENTENCE, SEED, fraction_evaluate=0.0)
        arrays = ArrayRecord({name: Array(p.detach().numpy()) for name, p in model.named_parameters()})
        while len(list(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.2)
        result = strategy.start(grid, arrays, num_rounds=STEPS, timeout=120)
        layout = Layout.of(model)
        flat = layout.join([torch.from_numpy(array.numpy().copy()) for array in result.arrays.values()])
        found = {"parameters": flat.tolist(), "up": strategy.up}
    else:
        outcome = run_rule(
            grid,
            task,
            population,
            SENTENCE,
            steps=STEPS,
            rate=setting.rate,
            seed=SEED,
            patience=120,
            counted=lambda down, up: bytes_of.append((down, up)),
        )
        found = {
            "parameters": outcome.parameters.tolist(),
            "clients": [step.clients for step in outcome.steps],
            "up_bytes": outcome.up_bytes.tolist(),
            "down_bytes": outcome.down_bytes.tolist(),
            "counted": bytes_of,
        }
    beside = OUT.with_suffix(".part")
    beside.write_text(json.dumps(found))
    beside.rename(OUT)


class _Counting(RuleStrategy):
    """The strategy, which also notes the payload of every reply."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.up: list[int] = []

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        self.up += [payload_bytes(reply.content) for reply in replies if reply.has_content()]
        return super().aggregate_train(server_round, replies)
