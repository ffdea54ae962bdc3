"""Digests of what training does, which show whether a change that should change nothing has changed something.

    python bench/digests.py record before.json [--engine virtual|real|both] [--device cpu|cuda] [--only TEXT]
    python bench/digests.py compare before.json [the same options]

Every strategy below trains a tiny model for a few steps. Recorded are the parameters with which each worker ends, the
bytes that each has sent and received, and the virtual seconds at which each ends. `compare` trains again, prints every
difference, and fails if there is one. Digests hold for one machine and one version of torch.

Only public names are used, so that the same file runs before and after modules have moved.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing as mp
import os
import re
import socket
import sys
import time
import traceback
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products on a GPU have one order of sums

import torch
import torch.nn.functional as F
from torch import nn

import laconic

WORKERS = 4
PROCESSES = 2
STEPS, PLANNED_STEPS = 6, 9  # schedules that measure plan anew after six steps
SAMPLES, TOKENS, WORDS, CLASSES = 8, 5, 11, 5
PATIENCE_SECONDS, START_SECONDS = 180, 300

Digests = dict[str, str]
"""What was seen of one strategy on one engine: `parameters`, `payload`, `bytes` and, of virtual workers, `seconds`."""


@dataclass(frozen=True)
class Case:
    """A strategy and what it is trained with."""

    strategy: str
    optimizer: str = "sgd"
    steps: int = STEPS
    slowness: tuple[float, ...] = (1.0,)
    workers: int = WORKERS
    servers: int = 0  # virtual machines that serve and do not train
    sparse: bool = False  # whether the embedding's gradients are sparse
    machines: bool = False  # whether virtual workers live two by two in machines, and real ones in two sites
    real: tuple[str, ...] = ("parameters", "payload", "bytes")  # what real processes repeat; nothing: left out there
    why: str = ""  # they do not repeat the rest

    @property
    def name(self) -> str:
        """The strategy, and the settings in which this case differs from most others."""
        plain = Case(self.strategy)
        named = ("optimizer", "slowness", "workers", "servers", "sparse")
        unlike = [f"{key}={getattr(self, key)}" for key in named if getattr(self, key) != getattr(plain, key)]
        return " | ".join([self.strategy, *unlike])


# ---------------------------------------------------------------------------------------------------- strategies

UNEQUAL = (1.0, 1.5, 1.0, 2.25)

HEADERS = "the header of a message depends on how far both sides are at that moment"
RACES = "whoever comes first decides with which parameters real processes end"
RACES_IN_BYTES = "whoever comes first, or is measured to be faster, decides how often real processes speak"
MEASURES = "messages are padded, and joined, by times that are measured"
DECIDES = "what is compressed is decided by times that are measured"
MORE_WORKERS = "its graph, its speeds or its servers are for more than two workers"

RULES = """
bsp
local_sgd(3)
local_sgd(2, momentum=average)
local_sgd(2, momentum=reset)
local_sgd(1, growing=true)
one_shot_averaging
adacomm(period=2, interval_seconds=60)
grad_accumulation(steps=2)
large_batch_sgd(batch=64, base=16, warmup=3)
cr_psgd(batch=16, growth=1.2, most=32)
warm_up(4)
jointspar
difference_averaging
difference_averaging(true)
diloco(3)
diloco(2, lr=1.0, momentum=0.0) / topk(0.1)+ef
slowmo(period=3)
slowmo(period=2, buffers=average)
slowmo(period=2, buffers=reset)
overlap_local_sgd(period=3)
streaming_diloco(period=4, fragments=2, overlap=1)
streaming_diloco(period=3, fragments=3, overlap=1, merge=0) / e3m0
local_sgd(2) / topk(0.1)+qsgd+ef
"""

GOSSIP = """
dpsgd
dpsgd / none / gossip / complete
dpsgd / none / gossip / one_peer_exponential
dpsgd / none / gossip / random_matching
dpsgd / bf16 / gossip / exponential
dpsgd / power_gossip(2) / gossip / ring
d2 / none / gossip / ring
d2 / none / gossip / complete
sgp
sgp(1) / fp16 / ring
sgp / exponential
detsgrad
matcha / complete
cooperative_sgd(2) / none / gossip / star
cooperative_sgd(2, auxiliary=1) / star
choco_sgd / topk(0.1) / gossip / ring
choco_sgd / qsgd / complete
"""

GOSSIP_OF_FOUR = """
dpsgd / none / gossip / torus
dpsgd / edges("0-1,1-2,2-3,3-0,0-2")
sgp(2) / edges("0>1,1>2,2>3,3>0,2>0")
matcha(0.6) / edges("0-1,1-2,2-3,3-0,0-2")
choco_sgd / mx_block_codecs(mxfp4) / torus
"""

COMPRESSORS = """
cast_fp16
cast_bf16+ef
cast_bf16(stochastic)
cast_fp8
cast_fp8(block=64, format=e4m3)+ef
cast_int8
cast_int8(shared=true)
cast_int8(block=100, rounding=stochastic)+ef
mx_block_codecs
mx_block_codecs(mxfp4)+ef
mx_block_codecs(nvfp4, rounding=stochastic)
blockwise_8bit
banner_8bit
e3m0+ef
two_bit+ef
strided_bits(4, 128)+ef
bucket_means
gupta_fixed_point
gupta_fixed_point(sum_bits=32, rounding=nearest)
flat+layerwise_bits(3)+ef
one_bit+ef
one_bit(per=tensor)+ef
one_bit_sgd
scaled_sign+ef
ef_signsgd
sign_sgd
signum
qsgd
qsgd(levels=127)
qsgd(levels=1, bucket=20, norm=max)
qsgd(coding=elias)
qsgd+ef
flat+qsgd+two_hop
terngrad
natural_compression
natural_dithering
nuqsgd
nuqsgd(coding=elias)
dorefa
qnn
suresh_binary
suresh_klevel
suresh_rotated
suresh_varlen
zipml
alq(updates=[2, 4])
amq(updates=[2, 4])
intsgd
intsgd(bits=32, rounding=nearest)
three_lc+ef
three_lc(runs=false)+two_hop(memory=true)+ef
ecq_sgd
ac_sgd
topk(0.01)+ef
topk(0.05, index=plain)+ef
topk(0.05, index=bitmap)+ef
topk(0.05, index=golomb)
topk(0.05, threshold=sampled)+ef
topk(0.1)+qsgd
topk(0.1)+cast_fp16+ef
mem_sgd
mstopk+ef
chunk_topk(k=3, chunk=64)+two_bit+ef(decay=0.95)
masked(0.1)+ef
masked(0.5)+topk(0.2, index=bitmap)+strided_bits
randk(0.1, scaled=false)+ef
randk(0.1, block=true)
gspar
gspar(solver=exact)
konecny_richtarik
konecny_richtarik(support=fixed, protocol=bitmap)
hard_threshold+ef
strom(0.01)+ef
strom(0.01, index=golomb)+ef
stc(0.01)+ef
deep_residual(0.05)+ef
sidco+ef
sidco(fit=gamma, stages=2)+ef
dgc(0.05)
flat+dgc(0.05, clip=1.0, warmup=4) / sequential
dragonn(0.05)
redsync(0.05)
redsync(0.05, quantized=true, small=64, large=1024)
egc
scalecom+ef(low_pass=0.1)
scalecom(0.05, per=chunk)+ef
gtopk(0.05)+ef
ok_topk_select+ef
important(0.5)+ef
layerwise_ratio
power_sgd(2)+ef
alternating(4)+ef
acp_sgd
atomo
pca_awfl
fft_sparse+ef
demo
lgc(0.05, dense=2, learn=2, width=4)+ef / sequential
dion
topk(0.1)+ef21
ef21_sgdm
qsgd+diana
randk(0.1)+marina
qsgd+compensation
strided_bits(4, 128)+loco
loco_adaptor
topk(0.01)+ramp(4)+ef
topk(0.01)+ramp(4, shape=stairs)+ef
topk(0.01)+iteration_ratio(steps=2)+ef
topk(0.01)+iteration_ratio(by=list, steps=2)+ef
sufficient_factors(batch=8) / allreduce(order=rank)
zero_run_length
zero_run_length(code=golomb)
dfs
flat+topk(0.01)+ef
flat+bucket_means+per_hop
bucket_means+per_hop
cast_int8+two_hop(memory=true)+ef
flat+scaled_sign+two_hop(memory=true)+ef
"""

SCHEDULES = """
bsp / sequential
bsp / allreduce(rank)
bsp / wfbp(0)
bsp / wfbp(2KiB)
bsp / allreduce(rank) / wfbp(1000)
bsp / qsgd / wfbp(0)
bsp / dear(4KiB)
pytorch_ddp
pytorch_ddp / cast_fp16
bsp_a2a
wfbp_a2a
poseidon
"""

MEASURED_SCHEDULES = """
bsp / mg_wfbp
bsp / mg_wfbp(rule=greedy)
bsp / bytescheduler(1000, credit=4000)
bsp / horovod(threshold_bytes=4000)
bsp / prophet(credit=4000, partition=1000)
bsp / ooo_backprop_dp(partition=1000)
bsp / ooo_backprop_dp(2)
bsp / cast_bf16+ef / bytescheduler(1000)
bsp / topk(0.1)+ef / mg_wfbp
bytescheduler_a2a
bsp / auto
bsp / auto(false)
"""

SERVERS = """
bsp / none / ps
bsp / none / ps(shards=2)
bsp / none / ps(shards=3, placement=whole)
bsp / none / ps(shards=2, placement=hashed, replicas=1)
bsp / none / ps(shards=2, down=bf16)
bsp / topk(0.1)+ef / ps(shards=2, down="topk(0.1)")
bsp / qsgd / ps(shards=2) / wfbp(2KiB)
bsp / scaled_sign+ef / ps
local_sgd(2) / none / ps
local_sgd(2) / int8 / ps(shards=2)
bsp_ps
wfbp_ps
bytescheduler_ps
bsp / none / ps / p3(300)
bsp / none / ps(shards=2) / bytescheduler(1000, credit=4000)
bsp / none / ps / mg_wfbp
bsp / none / ps / horovod(threshold_bytes=4000)
bsp / none / ps / prophet(credit=4000, partition=1000)
bsp / none / ps / auto
"""

IN_ORDER = """
hsp(ahead=none)
osp(share=0.5)
easgd(period=2, synchronous=true)
lag
lag(by=server)
"""

RACING = """
asp / none / ps
asp(staleness=inverse) / none / ps(shards=2)
asp(staleness=capped, limit=2) / none / ps
asp(staleness=drop, limit=2) / none / ps
asp(staleness=adaptive) / none / ps
asp(staleness=picky) / none / ps
asp(delay=1, momentum=auto) / none / ps
asp / topk(0.1) / ps(shards=2, down=bf16)
asp / none / ps(shards=2, replicas=1)
ps_plus
ps_plus(pull=at_once) / int8 / ps
softsync(2)
staleness_aware_lr
downpour(n_fetch=2, n_push=2)
downpour(optimizer=user)
adaptive_revision
smoothed_asp
r2p
easgd(period=2)
hogwild / none / shared
hogwild(delay=0.5)
ad_psgd / none / gossip / ring
"""

RACING_IN_BYTES = """
ssp(1)
ssp(2) / none / ps(shards=3)
mipd
hsp
osp
gssp(groups=2, profile=2)
a2s
ashl(coarse=3)
fsp(first=2)
"""

SHAPES = """
{matrix: cast_bf16+ef, else: none}
{matrix: power_sgd(2)+ef, conv: cast_fp16, embedding: qsgd, "head.*": none, numel>=60: int8, else: none}
{norm: bsp / sequential, bias: bsp / allreduce(rank), ndim>=2: bsp / wfbp(0), else: bsp}
{matrix: dpsgd / ring, else: d2}
{embedding: local_sgd(2), else: bsp}
bsp until step 3, then local_sgd(2)
bsp until step 2, then cast_fp16 until step 4, then topk(0.1)+ef
bsp until loss<1.75, then cast_bf16+ef
local_sgd(2) until step 3, then bsp
bsp until step 2, then diloco(2) / int8
bsp until step 2, then {matrix: topk(0.1)+ef, else: none}
{matrix: [bsp until step 3, then cast_fp16], else: none}
[bsp until step 2, then local_sgd(2)] until step 4, then bsp / sequential
"""

TIERS = """
[bsp]@node > [bsp]@site
[bsp]@node > [cast_bf16+ef]@site
[cast_fp16]@node > [power_sgd(2)+ef]@site
[bsp]@node > [local_sgd(2)]@site
[bsp / allreduce(rank) / sequential]@node > [local_sgd(3) / qsgd]@site
[local_sgd(2)]@node > [local_sgd(4)]@site
[bsp]@node > [diloco(2) / e3m0]@site
[bsp until step 3, then cast_fp16]@node > [cast_bf16+ef]@site
[{matrix: cast_fp16, else: none}]@node > [bsp]@site
[bsp]@node > [{matrix: topk(0.1)+ef, else: none}]@site
bsp until step 3, then [bsp]@node > [local_sgd(2)]@site
hierarchical_local_sgd
"""

NAMED = """
post_local_sgd
intellect1_int8_ring
muloco
sparseloco
streaming_diloco_4bit
cocktail_sgd
qsparse_local_sgd
pqasgd
auxiliary_tricks
"""

SIGNS = "flat+scaled_sign+two_hop(memory=true)+ef / allreduce"

OF_ADAM = f"""
one_bit_adam
bsp until step 3, then frozen_adam / {SIGNS}
zero_one_adam
freezing_adam(kappa=2) / {SIGNS} until step 3, then local_frozen_adam(doubling=1) / {SIGNS}
bsp / qsgd+ef
diloco(3) / int8
"""

ON_GPUS = """
bsp
bsp / wfbp(0)
bsp / allreduce(rank)
bsp / dear(4KiB)
bsp / bytescheduler(1000, credit=4000)
local_sgd(3)
diloco(3)
streaming_diloco(period=3, fragments=3, overlap=1, merge=0) / e3m0
dpsgd
choco_sgd / topk(0.1) / gossip / ring
bsp / none / ps(shards=2)
cast_fp16
cast_bf16+ef
cast_fp8(block=64, format=e4m3)+ef
cast_int8
mx_block_codecs(mxfp4)+ef
blockwise_8bit
two_bit+ef
strided_bits(4, 128)+ef
bucket_means
one_bit+ef
one_bit_sgd
scaled_sign+ef
ef_signsgd
sign_sgd
signum
qsgd
qsgd(levels=127)
qsgd(levels=1, bucket=20, norm=max)
qsgd+ef
flat+qsgd+two_hop
terngrad
natural_compression
natural_dithering
nuqsgd
suresh_klevel
suresh_rotated
three_lc+ef
topk(0.01)+ef
topk(0.05, index=bitmap)+ef
topk(0.05, threshold=sampled)+ef
topk(0.1)+qsgd
mstopk+ef
chunk_topk(k=3, chunk=64)+two_bit+ef(decay=0.95)
randk(0.1, scaled=false)+ef
dgc(0.05)
power_sgd(2)+ef
alternating(4)+ef
topk(0.1)+ef21
qsgd+diana
zero_run_length
cast_int8+two_hop(memory=true)+ef
flat+scaled_sign+two_hop(memory=true)+ef
{matrix: cast_bf16+ef, else: none}
bsp until step 3, then local_sgd(2)
[bsp]@node > [cast_bf16+ef]@site
"""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def all_cases() -> list[Case]:
    """Return every strategy with what it needs; names are unique."""
    read = {"real": ("parameters", "payload"), "why": HEADERS}  # of whoever has a server
    raced = {"real": ("payload",), "why": RACES}
    more_workers = {"real": (), "why": MORE_WORKERS}
    measured = {"real": ("parameters",), "why": MEASURES, "steps": PLANNED_STEPS}
    plain = [Case(text) for text in lines(RULES + GOSSIP + COMPRESSORS + SHAPES + NAMED)]
    slow = [Case(text, slowness=UNEQUAL, **more_workers) for text in lines(RULES)[:4]]
    gossip = [Case(text, **more_workers) for text in lines(GOSSIP_OF_FOUR)]
    planned = [Case(text, steps=PLANNED_STEPS) for text in lines(SCHEDULES)]
    planned += [Case(text, **measured) for text in lines(MEASURED_SCHEDULES)]
    served = [Case(text, steps=PLANNED_STEPS, **read) for text in lines(SERVERS)]
    racing = [Case(text, **read) for text in lines(IN_ORDER)]
    racing += [Case(text, **raced) for text in lines(RACING)]
    racing += [Case(text, slowness=UNEQUAL, **more_workers) for text in lines(IN_ORDER + RACING)]
    racing += [Case(text, slowness=UNEQUAL, real=(), why=RACES_IN_BYTES) for text in lines(RACING_IN_BYTES)]
    tiers = [Case(text, machines=True) for text in lines(TIERS)]
    adam = [Case(text, optimizer="adam") for text in lines(OF_ADAM)]
    others = [
        Case("bsp / qsgd / auto", steps=PLANNED_STEPS, real=(), why=DECIDES),
        Case("bsp", workers=3, **more_workers),
        Case("bsp / qsgd+ef / wfbp(2KiB)", workers=3, **more_workers),
        Case("flat+topk(0.1)+two_hop+ef", workers=3, **more_workers),
        Case("gtopk(0.05)+ef", workers=3, **more_workers),
        Case("dpsgd / ring", workers=3, **more_workers),
        Case("bsp / none / ps(shards=2)", servers=2, **more_workers),
        Case("asp / none / ps(shards=2)", servers=2, slowness=UNEQUAL, **more_workers),
        Case("bsp", optimizer="plain", sparse=True),
        Case("bsp / allreduce(rank) / wfbp(0)", optimizer="plain", sparse=True),
        Case("hogwild / none / shared", optimizer="plain", sparse=True, slowness=UNEQUAL, **more_workers),
        Case("bsp until step 3, then frozen_lamb", optimizer="lamb"),
        Case("one_bit_lamb", optimizer="lamb"),
        Case("bsp / cast_fp16", optimizer="lars"),
        Case("muloco", optimizer="muon"),
    ]
    cases = [*plain, *slow, *gossip, *planned, *served, *racing, *tiers, *adam, *others]
    if len({case.name for case in cases}) < len(cases):
        raise ValueError("two cases have one name")
    return cases


def chosen_cases(engine: str, device: str, only: str) -> list[Case]:
    """Return the cases that this engine can repeat on this device and whose name contains the text."""
    on_gpus = set(lines(ON_GPUS))
    return [
        case
        for case in all_cases()
        if only in case.name and (engine == "virtual" or case.real) and (device == "cpu" or case.name in on_gpus)
    ]


# ---------------------------------------------------------------------------------------------------- training


class Net(nn.Module):
    """A model with every role a parameter can have, in sizes that no power of two divides."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 7, sparse=sparse)
        self.conv = nn.Conv1d(7, 9, 3)
        self.norm = nn.BatchNorm1d(9)
        self.hidden = nn.Linear(9 * (TOKENS - 2), 61)
        self.wide = nn.Linear(61, 67)
        self.head = nn.Linear(67, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(self.embedding(tokens).transpose(1, 2))))
        return self.head(torch.tanh(self.wide(torch.tanh(self.hidden(x.flatten(1))))))


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if name == "plain":
        return torch.optim.SGD(parameters, lr=0.05)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=0.01)
    if name == "lamb":
        return laconic.optim.LAMB(parameters, lr=0.01)
    if name == "lars":
        return laconic.optim.LARS(parameters, lr=1.0, trust=0.02)
    if name == "muon":
        return laconic.optim.Muon(laconic.optim.matrices_apart(model), lr=0.01)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def batch(rank: int, step: int, samples: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a rank and a step, which is the same wherever it is drawn."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, WORDS, (samples, TOKENS), generator=draw)
    return tokens.to(device), (tokens.sum(1) % CLASSES).to(device)


def train(case: Case, device: str, **options: Any) -> tuple[list[str], Any]:
    """Train as one worker; return digests of its values before and after `laconic.finish`, and the worker."""
    torch.manual_seed(4)
    model = Net(case.sparse).to(device)
    model, optimizer = laconic.distribute(model, optimizer_of(case.optimizer, model), case.strategy, **options)
    worker = optimizer.session.worker
    torch.manual_seed(10 + laconic.rank())
    for step in range(case.steps):
        tokens, labels = batch(laconic.rank(), step, laconic.batch_size(SAMPLES), device)
        F.cross_entropy(model(tokens), labels).backward()
        laconic.log(loss=2.0 - step / 10)
        optimizer.step()
        optimizer.zero_grad()
    seen = [digest_of(model.state_dict().values())]  # a state_dict waits for what is in flight
    laconic.finish(model, optimizer)
    seen.append(digest_of(model.state_dict().values()))
    laconic.undistribute(model, optimizer)
    return seen, worker


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def digest_of_values(values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def counted(ledger: Any, kind: str | None) -> tuple[float, float]:
    return ledger.sent_bytes(kind), ledger.received_bytes(kind)


# ---------------------------------------------------------------------------------------------------- virtual workers


def type_of(parameter: str) -> Any:
    """Return the class that `laconic.simulate` takes for one of its parameters, wherever it is defined."""
    hint = typing.get_type_hints(laconic.simulate)[parameter]
    kinds = typing.get_args(hint) or (hint,)
    return next(kind for kind in kinds if isinstance(kind, type) and kind.__module__.startswith("laconic"))


def network_of(case: Case) -> Any:
    """Return a network with links of 100 Mb/s; where there are hosts of several workers, with slower ones between
    them."""
    levels = [{"workers": 1, "bandwidth": "100Mbit", "latency": "200us"}]
    if case.machines:
        levels.append({"workers": 2, "bandwidth": "40Mbit", "latency": "2ms"})
    return type_of("network").read(case.workers, {"levels": levels})


def run_virtual(case: Case, device: str) -> Digests:
    compute = type_of("compute")(0.003, 0.005, 0.001, slowness=case.slowness)

    def script() -> tuple[list[str], float]:
        seen, worker = train(case, device)
        return seen, worker.clock_seconds()

    out = laconic.simulate(script, case.workers, network_of(case), compute, servers=case.servers)
    return {
        "parameters": digest_of_values([seen for seen, _ in out.results]),
        "payload": digest_of_values([counted(worker.ledger, "payload") for worker in out.workers]),
        "bytes": digest_of_values([counted(worker.ledger, None) for worker in out.workers]),
        "seconds": digest_of_values([[seconds for _, seconds in out.results], out.seconds]),
    }


# ---------------------------------------------------------------------------------------------------- real processes


class Processes:
    """Real workers that are started once and train one strategy after the other; afresh after a failure."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.size = PROCESSES if device == "cpu" else 1
        self._processes: list[Any] = []
        self._pipes: list[Any] = []

    def run(self, case: Case) -> Digests:
        try:
            if not self._processes:
                self._start()
            for pipe in self._pipes:
                pipe.send(case)
            rows = self._answers(PATIENCE_SECONDS)
        except BaseException:
            self.stop()
            raise
        return {what: digest_of_values([row[what] for row in rows]) for what in case.real}

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = mp.get_context("spawn")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(self.size):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(rank, self.size, port, self.device, there), daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(here)
        self._answers(START_SECONDS)

    def _answers(self, patience_seconds: float) -> list[Any]:
        """Return each process's answer in rank order, or raise the first error among them."""
        answers: dict[Any, Any] = {}
        while len(answers) < len(self._pipes):
            ready = wait([pipe for pipe in self._pipes if pipe not in answers], patience_seconds)
            if not ready:
                raise RuntimeError(f"a process did not answer in {patience_seconds} s")
            for pipe in ready:
                good, answers[pipe] = pipe.recv()
                if not good:
                    raise RuntimeError(answers[pipe])
        return [answers[pipe] for pipe in self._pipes]


def work(rank: int, size: int, port: int, device: str, pipe: Any) -> None:
    """Train, as one real process, every case that the parent sends."""
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    prepare(device)
    torch.distributed.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
    mesh = torch.distributed.device_mesh.init_device_mesh(device, (size, 1), mesh_dim_names=("site", "node"))
    pipe.send((True, "ready"))
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, run_real(case, device, mesh)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def run_real(case: Case, device: str, mesh: Any) -> dict[str, Any]:
    """Train a case in this process, and return its digests and bytes."""
    ledger = ledger_of_process()
    payload, total = counted(ledger, "payload"), counted(ledger, None)
    seen, _ = train(case, device, **({"mesh": mesh} if case.machines else {}))
    return {
        "parameters": seen,
        "payload": differences(counted(ledger, "payload"), payload),
        "bytes": differences(counted(ledger, None), total),
    }


def ledger_of_process() -> Any:
    """Return this process's byte counts so far, found through a model that is distributed for a moment."""
    model = nn.Linear(1, 1)
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "bsp")
    ledger = optimizer.session.worker.ledger
    laconic.undistribute(model, optimizer)
    return ledger


def differences(after: Iterable[float], before: Iterable[float]) -> list[float]:
    """Return the counts since then, rounded because the sums are floating-point numbers."""
    return [round(b - a, 3) for a, b in zip(before, after, strict=True)]


# ---------------------------------------------------------------------------------------------------- the command


def prepare(device: str) -> None:
    """Make every run give the same bits, as far as torch can promise that."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # whoever reads it shall be seen


def digests(engine: str, device: str, only: str) -> Iterator[tuple[str, Digests | str]]:
    """Return each name with its digests, or with the error that ended the training."""
    cases = chosen_cases(engine, device, only)
    processes = Processes(device)
    try:
        for number, case in enumerate(cases, 1):
            begin = time.perf_counter()
            found: Digests | str
            try:
                found = run_virtual(case, device) if engine == "virtual" else processes.run(case)
            except Exception:
                found = traceback.format_exc()
            took = time.perf_counter() - begin
            print(f"{engine} {number}/{len(cases)} {took:5.2f} s  {case.name}", file=sys.stderr, flush=True)
            yield case.name, found
    finally:
        processes.stop()


def record(engines: list[str], device: str, only: str, path: Path) -> int:
    """Write the digests to the file, beside those of other engines, and return how many trainings failed."""
    known = json.loads(path.read_text()) if path.exists() else {}
    failures = 0
    for engine in engines:
        rows = known.get(f"{engine} {device}", {}) if only else {}
        for name, found in digests(engine, device, only):
            if isinstance(found, str):
                failures += 1
                print(f"{engine}: {name} failed\n{found}")
            else:
                rows[name] = found
        known[f"{engine} {device}"] = rows
        print(f"{len(rows)} strategies of {engine} workers on {device} are recorded")
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return failures


def compare(engines: list[str], device: str, only: str, path: Path) -> int:
    """Train again, print each difference as it is found, and return how many there are."""
    known = json.loads(path.read_text())
    different = equal = 0
    for engine in engines:
        rows = {name: row for name, row in known.get(f"{engine} {device}", {}).items() if only in name}
        for name, found in digests(engine, device, only):
            printed = complaints(rows.pop(name, None), found)
            different += len(printed)
            equal += 0 if isinstance(found, str) else len(found) - len(printed)
            for complaint in printed:
                print(f"{engine}: {name}: {complaint}", flush=True)
        for name in rows:
            different += 1
            print(f"{engine}: {name}: recorded, and not trained now")
    print(f"{different} differences, {equal} digests equal" if different else f"{equal} digests equal")
    return different


def complaints(recorded: Digests | None, found: Digests | str) -> list[str]:
    """Return how a training differs from its record."""
    if isinstance(found, str):
        return [f"failed\n{found}"]
    if recorded is None:
        return ["not recorded"]
    kinds = sorted(recorded.keys() | found.keys())
    return [f"{kind} differ" for kind in kinds if recorded.get(kind) != found.get(kind)]


def main() -> None:
    parser = argparse.ArgumentParser(description=re.sub(r"\n\n    .*?\n\n", "\n\n", __doc__ or "", flags=re.DOTALL))
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path, help="JSON")
    parser.add_argument("--engine", choices=["virtual", "real", "both"], default="both")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", default="", metavar="TEXT", help="strategies whose name contains this")
    args = parser.parse_args()
    prepare(args.device)
    engines = ["virtual", "real"] if args.engine == "both" else [args.engine]
    act = record if args.what == "record" else compare
    sys.exit(1 if act(engines, args.device, args.only, args.file) else 0)


if __name__ == "__main__":
    main()
