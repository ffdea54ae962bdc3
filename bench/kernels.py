"""The hot loops of compression on a GPU, beside eager torch and torch.compile, as shares of what memory allows.

    python bench/kernels.py                        # 1 Mi, 16 Mi and 128 Mi elements, and 400 tensors of 25 M in all
    python bench/kernels.py --elements 128 --only sign,qsgd
    python bench/kernels.py --backward             # what encoding beside it costs a backward pass

Nothing but torch and Triton is imported, so that it runs where nothing can be installed. An operation's floor is the
bytes that its passes must move (stated for each) at the rate of a device-to-device copy in the same run. Times are
medians of repeated calls, each with a cold cache; memory that an operation makes itself is part of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from triton.testing import do_bench

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
import eager
from laconic import kernels

MI, KEY, WORKERS = 1 << 20, 99, 8
Call = Callable[[], object]
Encode = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[int]], object]


@dataclass(frozen=True)
class Operation:
    """One row: `floor` is the bytes per element of these passes; `eager` is what libraries write."""

    name: str
    floor: float
    passes: str
    ours: Call
    eager: Call | None = None
    compiled: bool = True


def ms(call: Call) -> float:
    return float(do_bench(call, warmup=50, rep=150, return_mode="median"))


# ---------------------------------------------------------------------------------------------- operations


def operations(n: int) -> Iterator[Operation]:
    x, error = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    yield Operation(
        "sign: error feedback + sign + pack",
        20.125,
        "read x, e; read x, e, write e, bits",
        lambda: kernels.encode_signs([x], [error]),
        lambda: eager.signs(x, error),
    )
    for steps, name in ((7, "qsgd 4 bit"), (1, "qsgd 2 bit"), (127, "qsgd 8 bit")):
        width = {1: 2, 7: 4, 127: 8}[steps]
        yield Operation(
            f"{name}, bucket 512",
            4 + width / 8 + 4 / 512,
            "read x, write codes, scales",
            lambda steps=steps: kernels.encode_levels([x], None, 512, steps, "max", [KEY]),
            lambda steps=steps: eager.levels(x, steps),
        )
    yield Operation(
        "qsgd 4 bit with error feedback",
        12.5 + 4 / 512,
        "read x, e, write e, codes, scales",
        lambda: kernels.encode_levels([x], [error], 512, 7, "max", [KEY]),
        lambda: eager.fed_levels(x, error),
    )
    rows = torch.stack([kernels.encode_signs([x], [error])] * WORKERS)
    yield Operation(
        f"mean of {WORKERS} signs",
        WORKERS / 8 + 4,
        "read bits of all, write mean",
        lambda: kernels.mean_of_signs(rows, [n]),
        lambda: eager.mean_of_signs(rows, n),
    )
    rows = torch.stack([kernels.encode_levels([x], None, 512, 7, "max", [KEY])] * WORKERS)
    yield Operation(
        f"mean of {WORKERS} qsgd 4 bit",
        WORKERS * (0.5 + 4 / 512) + 4,
        "read codes of all, write mean",
        lambda: kernels.mean_of_levels(rows, [n], 512, 7),
        lambda: eager.mean_of_levels(rows, n),
    )
    yield from blocks(n, x, error)
    yield from rows(n)
    yield from small_codes(n, x, error)
    yield from selections(n, x, error)
    yield from matrices(n, x)


def blocks(n: int, x: Tensor, error: Tensor) -> Iterator[Operation]:
    formats = {
        "int8, block 512": kernels.BlockFormat("int8", "float32", 512),
        "int8, block 512, at random": kernels.BlockFormat("int8", "float32", 512, stochastic=True),
        "fp8 e4m3, block 512": kernels.BlockFormat("e4m3", "float32", 512),
        "mxfp8": kernels.BlockFormat("e4m3", "e8m0", 32),
        "mxfp4": kernels.BlockFormat("e2m1", "e8m0", 32),
    }
    for name, how in formats.items():
        each = how.message_bytes(n) / n
        yield Operation(
            name,
            4 + each,
            "read x, write codes, scales",
            lambda how=how: kernels.encode_blocks([x], None, how, [KEY]),
        )
        yield Operation(
            f"{name}, error feedback",
            12 + each,
            "read x, e, write e, codes, scales",
            lambda how=how: kernels.encode_blocks([x], [error], how, [KEY]),
        )
        rows = torch.stack([kernels.encode_blocks([x], None, how, [KEY])] * WORKERS)
        yield Operation(
            f"mean of {WORKERS} {name}",
            WORKERS * each + 4,
            "read codes of all, write mean",
            lambda how=how, rows=rows: kernels.mean_of_blocks(rows, [n], how),
        )
    whole = kernels.BlockFormat("int8", "float32", 0)
    yield Operation(
        "int8, one scale",
        9,
        "read x; read x, write codes",
        lambda: kernels.encode_blocks([x], None, whole, [KEY]),
    )


def rows(n: int) -> Iterator[Operation]:
    """What a sharded step does: rows for eight owners, in 16 bits."""
    gradient = torch.randn(WORKERS, n // WORKERS, device="cuda", dtype=torch.bfloat16)
    four, eight, kept = (kernels.BlockFormat(f"int{bits}", "float32", b) for bits, b in ((4, 128), (8, 256), (8, 1024)))
    small, messages = four.message_bytes(n) / n, kernels.encode_block_rows(gradient, eight, 0)
    yield Operation(
        "rows: int4, block 128", 2 + small, "read x, write codes", lambda: kernels.encode_block_rows(gradient, four, 0)
    )
    yield Operation(
        "rows: decode int8, block 256",
        2 + eight.message_bytes(n) / n,
        "read codes, write values",
        lambda: kernels.decode_block_rows(messages, gradient, eight),
    )
    for name, width, floor in (
        ("whole blocks", n // WORKERS, 4 + small),
        ("other rows", n // WORKERS - 32, 7 + 2 * small),
    ):
        x = torch.randn(WORKERS, width, device="cuda", dtype=torch.bfloat16)
        memory = torch.zeros(kept.message_bytes(x.numel()), dtype=torch.uint8, device="cuda")
        yield Operation(
            f"rows: LoCo, int4, {name}",
            floor,
            "read x, e, write codes, e" if width * WORKERS == n else "read x, e, write codes; read all, write e",
            lambda x=x, memory=memory: kernels.feed_short_memory(x, memory, four, kept, 0.2),
        )


def small_codes(n: int, x: Tensor, error: Tensor) -> Iterator[Operation]:
    yield Operation(
        "3LC: error feedback + ternary + pack",
        20.2,
        "read x, e; read x, e, write e, bytes",
        lambda: kernels.encode_trits([x], [error], 1.0),
        lambda: eager.trits(x, error),
    )
    columns = 1 << (n.bit_length() - 1) // 2
    yield Operation(
        f"one bit, {columns} columns, error feedback",
        20.125,
        "read x, e; read x, e, write e, bits",
        lambda: kernels.encode_columns([x], [error], [columns]),
        lambda: eager.columns(x, error, columns),
    )
    yield Operation(
        "natural compression, 9 bit",
        4 + 9 / 8,
        "read x, write codes",
        lambda: kernels.encode_natural([x], None, [KEY]),
        lambda: eager.natural(x),
    )
    ballots = torch.randint(256, (WORKERS, n // 8), dtype=torch.uint8, device="cuda")
    yield Operation(
        f"vote of {WORKERS}",
        (WORKERS + 1) / 8,
        "read bits of all, write bits",
        lambda: kernels.vote(ballots),
        lambda: eager.vote(ballots),
    )
    trits = torch.stack([kernels.encode_trits([x], None, 1.0)] * WORKERS)
    yield Operation(
        f"mean of {WORKERS} 3LC",
        WORKERS / 5 + 4,
        "read bytes of all, write mean",
        lambda: kernels.mean_of_trits(trits, [n]),
    )


def selections(n: int, x: Tensor, error: Tensor) -> Iterator[Operation]:
    k, looked, width = n // 100, max(n // 1000, 10_000), (n - 1).bit_length()
    limit = kernels.sampled_limit(x, None, looked, looked // 100, KEY)

    def sampled() -> object:
        least = kernels.sampled_limit(x, error, looked, looked // 100, KEY)
        return kernels.feed_selected(x, error, least)

    yield Operation(
        "select 1 % by a threshold",
        4 + 0.12,
        "read x, write places, values",
        lambda: kernels.select(x, limit),
        lambda: (lambda at: (at, x[at]))(torch.nonzero(x.abs() >= limit).view(-1)),
        compiled=False,
    )
    yield Operation(
        "sampled top 1 % with error feedback",
        12 + 0.12,
        "read x, e, write e, places, values",
        sampled,
        lambda: eager.sampled(x, error, k),
        compiled=False,
    )
    yield Operation(
        "exact top 1 %",
        4 + 0.08,
        "read x, write places",
        lambda: kernels.largest(x, k),
        lambda: eager.topk(x, k),
        False,
    )
    each = 0.01 * (4 + width / 8)
    yield Operation(
        "message: sampled 1 %, error feedback",
        12 + each,
        "read x, e, write e, message",
        lambda: kernels.encode_sampled([x], [error], [(looked, 9 * looked // 1000)], [k], [width], [KEY]),
    )
    yield Operation(
        "message: exact top 1 %",
        4 + each,
        "read x, write message",
        lambda: kernels.encode_largest([x], None, [k], [width]),
    )
    rows = torch.stack([kernels.encode_largest([torch.randn_like(x)], None, [k], [width]) for _ in range(WORKERS)])
    mean = torch.empty_like(x)
    yield Operation(
        f"mean of {WORKERS} messages, 1 % each",
        4 + WORKERS * each,
        "read messages of all, write mean",
        lambda: kernels.average_places(mean, rows, [n], [k], [width], False, 0.0),
    )
    selected = [kernels.select(torch.randn(n, device="cuda"), 2.5758) for _ in range(WORKERS)]
    places, values = [at for at, _ in selected], [v for _, v in selected]
    yield Operation(
        f"mean of {WORKERS} sparse, 1 % each",
        4 + 12 * sum(map(len, places)) / n,
        "read places, values of all, write mean",
        lambda: kernels.mean_of_sparse(places, values, n, 0.0),
        lambda: eager.mean_of_sparse(places, values, n),
        compiled=False,
    )


def matrices(n: int, x: Tensor) -> Iterator[Operation]:
    rows = 1 << (n.bit_length() - 1) // 2
    matrix, q = x[: rows * (n // rows)].view(rows, -1), torch.randn(n // rows, 4, device="cuda")

    def power() -> object:
        (p,) = kernels.orthogonalised(kernels.left_products([matrix], [q]))
        return kernels.right_products([matrix], [p])

    yield Operation("PowerSGD, rank 4", 8, "read M; read M", power, lambda: eager.power(matrix, q))
    if n & (n - 1) == 0:
        passes = -(-(n.bit_length() - 1 - 13) // 7) + 1
        yield Operation(
            "Hadamard rotation",
            8 * passes,
            f"read and write in {passes} passes",
            lambda: kernels.rotate(x, KEY),
            lambda: eager.rotate(x),
        )


# ---------------------------------------------------------------------------------------------- tables


def wanted(name: str, only: str) -> bool:
    return not only or any(word in name for word in only.split(","))


def flat(n: int, rate: float, only: str, compiling: bool) -> None:
    print(f"\n{n // MI} Mi elements; floor at {rate / 1e9:.2f} TB/s")
    print(
        f"{'':36}{'bytes':>7}{'floor':>8}{'ours ms':>9}{'share':>7}{'eager':>8}{'share':>7}{'compiled':>9}{'share':>7}"
    )
    for op in operations(n):
        if not wanted(op.name, only):
            continue
        floor = op.floor * n / rate
        cells = [f"{op.name:36}{op.floor:7.2f}{floor:8.3f}"]
        compiled = torch.compile(op.eager) if op.eager is not None and op.compiled and compiling else None
        for call, width in ((op.ours, 9), (op.eager, 8), (compiled, 9)):
            took = None if call is None else tried(call)
            cells.append(f"{'–':>{width}}{'–':>7}" if took is None else f"{took:{width}.3f}{floor / took:7.0%}")
        print("".join(cells), f" {op.passes}", flush=True)


def tried(call: Call) -> float | None:
    """Measure a row, and print its error if it fails, so that the other rows are measured all the same."""
    try:
        return ms(call)
    except Exception as error:
        print(f"    failed: {type(error).__name__}: {str(error)[:300]}")
        return None


def lists(only: str) -> None:
    """Measure 400 tensors of a model's sizes in one launch, against one flat tensor of as many elements; then one by
    one."""
    draw = torch.Generator().manual_seed(0)
    small = torch.randint(64, 4096, (200,), generator=draw).tolist()
    large = torch.randint(10_000, 240_000, (200,), generator=draw)
    lengths = [*small, *(large * ((25_000_000 - sum(small)) / large.sum())).long().tolist()]
    n = sum(lengths)
    xs = kernels.TensorList(torch.randn(k, device="cuda") for k in lengths)
    errors = kernels.TensorList(torch.zeros(k, device="cuda") for k in lengths)
    x, error = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    keys = list(range(len(xs)))
    calls = {
        "sign": (lambda xs, es, keys: kernels.encode_signs(xs, es)),
        "qsgd 4 bit with error feedback": lambda xs, es, keys: kernels.encode_levels(xs, es, 512, 7, "max", keys),
    }
    print(f"\n{len(xs)} tensors, {n / 1e6:.1f} M elements")
    print(f"{'':36}{'list ms':>9}{'flat ms':>9}{'ratio':>7}{'one by one':>12}")
    for name, call in calls.items():
        if not wanted(name, only):
            continue
        listed = ms(partial(call, xs, errors, keys))
        whole = ms(partial(call, [x], [error], [0]))
        apart = ms(partial(one_by_one, call, xs, errors))
        print(f"{name:36}{listed:9.3f}{whole:9.3f}{listed / whole:7.2f}{apart:12.3f}", flush=True)


def one_by_one(call: Encode, xs: Sequence[Tensor], errors: Sequence[Tensor]) -> None:
    for x, error in zip(xs, errors, strict=True):
        call([x], [error], [0])


def backward(bucket_mb: float, sequences: int) -> None:
    """Measure a transformer's backward pass alone, and with its gradients encoded on another stream bucket by
    bucket."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, 0.0, batch_first=True, device="cuda")
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    parameters = list(model.parameters())
    batch = torch.randn(sequences, 512, 1024, device="cuda")
    side = torch.cuda.Stream()
    buckets: list[list[Tensor]] = [[]]
    for p in reversed(parameters):
        p.grad = torch.zeros_like(p)  # and stays where it is
        if sum(q.nbytes for q in buckets[-1]) >= bucket_mb * MI:
            buckets.append([])
        buckets[-1].append(p)
    gradients = [kernels.TensorList(p.grad.view(-1) for p in bucket) for bucket in buckets]
    errors = [kernels.TensorList(torch.zeros_like(g) for g in bucket) for bucket in gradients]
    keys = [list(range(len(bucket))) for bucket in buckets]
    waiting: dict[int, int] = {}
    encoding: list[Encode | None] = [None]
    calling = [0.0]

    def ready(p: Tensor, home: int) -> None:
        waiting[home] -= 1
        if encoding[0] is not None and not waiting[home]:
            side.wait_stream(torch.cuda.current_stream())
            begin = time.perf_counter()
            with torch.cuda.stream(side):
                encoding[0](gradients[home], errors[home], keys[home])
            calling[0] += time.perf_counter() - begin

    for home, members in enumerate(buckets):
        for p in members:
            p.register_post_accumulate_grad_hook(lambda p, home=home: ready(p, home))

    def once(encode: Encode | None) -> float:
        encoding[0] = encode
        torch._foreach_zero_([p.grad for p in parameters])
        waiting.update({home: len(members) for home, members in enumerate(buckets)})
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch).float().square().mean()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        loss.backward()
        torch.cuda.current_stream().wait_stream(side)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    ways: dict[str, Encode | None] = {
        "alone": None,
        "sign": lambda xs, es, keys: kernels.encode_signs(xs, es),
        "qsgd 4 bit": lambda xs, es, keys: kernels.encode_levels(xs, es, 512, 7, "max", keys),
        "eager sign": lambda xs, es, keys: [eager.signs(x, e) for x, e in zip(xs, es, strict=True)],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    host: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(24):
        for name, encode in ways.items():
            calling[0] = 0.0
            took = once(encode)
            if turn >= 4:
                times[name].append(took)
                host[name].append(1e3 * calling[0])
    count = sum(p.numel() for p in parameters)
    print(f"\nbackward of {count / 1e6:.0f} M parameters, {512 * sequences:,} tokens, {len(buckets)} buckets")
    alone = torch.tensor(times["alone"])
    for name, taken in times.items():
        ratio = torch.tensor(taken) / alone
        low, middle, high = ratio.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        spent = torch.tensor(host[name]).median()
        print(
            f"{name:14}{torch.tensor(taken).median():8.2f} ms   {middle:6.3f} [{low:.3f}–{high:.3f}] of alone, "
            f"{spent:5.2f} ms of it calls on the host"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", default="1,16,128", help="in Mi, separated by commas")
    parser.add_argument("--only", default="", help="operations whose names contain one of these words")
    parser.add_argument("--uncompiled", action="store_true", help="without torch.compile, which takes its time")
    parser.add_argument("--backward", action="store_true", help="only what a backward pass suffers")
    parser.add_argument("--bucket", type=float, default=25, help="MiB of gradients that are encoded at once there")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench/kernels.py measures a GPU, and torch sees none; for CPUs there is bench/kernels_cpu.py")
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}")
    if not asked.backward:
        a, b = torch.randn(2, 128 * MI, device="cuda")
        rate = 8 * 128 * MI / ms(lambda: b.copy_(a))  # bytes a millisecond
        del a, b
        for mi in map(int, asked.elements.split(",")):
            flat(mi * MI, rate, asked.only, not asked.uncompiled)
        lists(asked.only)
    for sequences in (16, 64):
        backward(asked.bucket, sequences)


if __name__ == "__main__":
    main()
