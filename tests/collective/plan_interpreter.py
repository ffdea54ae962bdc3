"""An interpreter of MSCCL++'s execution plans as their format says, for tests: one operation of some thread block at a
time, drawn at random."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np


class PlanInterpreter:
    def __init__(self, plan: dict[str, Any], held: dict[tuple[int, str, int], np.ndarray]) -> None:
        self.gpus, self.held = plan["gpus"], held
        self.signals: Counter[tuple[int, int, int]] = Counter()  # (from, to, which channel between the two)
        self.semaphores = {(g["id"], k): s["init_value"] for g in self.gpus for k, s in enumerate(g["semaphores"])}

    def run(self, draw: np.random.Generator) -> None:
        left = {(g["id"], b["id"]): list(b["ops"]) for g in self.gpus for b in g["threadblocks"] if b["ops"]}
        while left:
            keys = list(left)
            for k in draw.permutation(len(keys)):
                rank, one = keys[k]
                if self.did(rank, one, left[rank, one][0]):
                    left[rank, one].pop(0)
                    if not left[rank, one]:
                        del left[rank, one]
                    break
            else:
                raise AssertionError(f"the plan is stuck: {[ops[0] for ops in left.values()]}")

    def channel(self, rank: int, one: int, op: dict[str, Any]) -> tuple[int, int]:
        """The peer of an operation's channel, and which of the channels between the two it is."""
        (listed,) = self.gpus[rank]["threadblocks"][one]["channels"]
        (described,) = self.gpus[rank]["channels"]
        number = listed["channel_ids"][op["channel_ids"][0]]
        peers = described["connected_to"]
        return peers[number], peers[:number].count(peers[number])

    def did(self, rank: int, one: int, op: dict[str, Any]) -> bool:
        name = op["name"]
        if name in ("signal", "rlxsignal"):
            peer, which = self.channel(rank, one, op)
            self.signals[rank, peer, which] += 1
        elif name in ("wait", "rlxwait"):
            peer, which = self.channel(rank, one, op)
            if not self.signals[peer, rank, which]:
                return False
            self.signals[peer, rank, which] -= 1
        elif name == "sem_acquire":
            if not all(self.semaphores[rank, k] for k in op["semaphore_ids"]):
                return False
            for k in op["semaphore_ids"]:
                self.semaphores[rank, k] -= 1
        elif name == "sem_release":
            for k in op["semaphore_ids"]:
                self.semaphores[rank, k] += 1
        elif name == "put":
            peer, _ = self.channel(rank, one, op)
            (refs,) = self.gpus[rank]["threadblocks"][one]["remote_buffer_refs"]
            (target,) = op["dst_buff"]
            buffer = self.gpus[rank]["remote_buffers"][refs["remote_buffer_ids"][target["buffer_id"]]]
            assert buffer["rank"] == peer
            self.write(peer, buffer["type"], target["index"], self.read(rank, op["src_buff"][0]))
        elif name in ("copy", "re"):
            (target,) = op["dst_buff"]
            self.write(rank, target["type"], target["index"], sum(self.read(rank, place) for place in op["src_buff"]))
        else:
            assert name == "nop", name
        return True

    def read(self, rank: int, place: dict[str, Any]) -> np.ndarray:
        return self.held[rank, place["type"], place["index"]]

    def write(self, rank: int, buffer: str, index: int, value: np.ndarray) -> None:
        gpu = self.gpus[rank]
        assert 0 <= index < gpu[{"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}[buffer]]
        self.held[rank, buffer, index] = value
