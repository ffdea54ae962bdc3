"""Methods of sharded training: what a model that `fully_shard` has sharded sends of its gradients and its weights.

They are no words, since a sentence is about what workers with whole models exchange. `laconic.distribute` takes their
names where the model is sharded: `distribute(model, optimizer, "zero_plus_plus")`.
"""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import StrategyError
from laconic.registry import entries, technique

_NO_WORD = (
    "It says what a sharded model sends, of gradients and of weights: call fully_shard(model), then "
    "laconic.distribute(model, optimizer, {name!r})."
)


@dataclass(frozen=True)
class ShardedMethod:
    """How gradients are scattered to the owners of shards and how weights are gathered from them, as chains.

    `inside` is the way inside a host and `across` between hosts; over one host, or where nobody says which workers
    share one, `alone` is. `reshard_after_forward` is what to give to `fully_shard`.
    """

    alone: str = "none"
    inside: str = "none"
    across: str = "none"
    weights: str = "none"
    reshard_after_forward: bool | int = True

    def __post_init__(self) -> None:
        if type(self.reshard_after_forward) is int and self.reshard_after_forward == 1:  # which True equals
            object.__setattr__(self, "reshard_after_forward", False)

    def gradients(self, inside: str | None = None, across: str | None = None) -> str:
        """Return the strategy over the tiers of these names; without names, over all owners at once."""
        return self.alone if inside is None else f"[{self.inside}]@{inside} > [{self.across}]@{across}"


@technique(
    "zero_sharded_dp",
    axis="architecture",
    aliases=["zero", "fsdp"],
    paper="Rajbhandari, Rasley, Ruwase, He, SC 2020 (arXiv 1910.02054); Zhao et al., VLDB 2023",
    why_no_word=_NO_WORD.format(name="zero"),
)
def zero_sharded_dp(stage: int = 3) -> ShardedMethod:
    """ZeRO and FSDP: each of N workers owns 1/N of parameters, gradients and optimizer state, uncompressed.

    A worker sends (N-1)/N of 2n values in a step of stages 1 and 2 (gradients are scattered, parameters gathered), and
    of 3n in stage 3, which frees parameters after forward and gathers them again for backward. `fully_shard` has
    stage 3, and with `reshard_after_forward=False` the traffic of stage 2; stage 1 is the same traffic. In mixed
    precision a worker keeps 4 + 12/N, 2 + 16/N and 16/N bytes a parameter: PyTorch has gradients of shards in float32,
    which in stage 2 is 2/N more than ZeRO counts, 9 % for four workers and less than 2 % from 44 on.
    """
    if stage not in (1, 2, 3):
        raise StrategyError(f"ZeRO has the stages 1, 2 and 3, not {stage}")
    return ShardedMethod(reshard_after_forward=stage == 3)


@technique(
    "zeropp_qwz",
    axis="architecture",
    paper="Wang, Qin, Jacobs et al. (ZeRO++), arXiv 2306.10209, ICLR 2024",
    why_no_word=_NO_WORD.format(name="zeropp_qwz"),
)
def zeropp_qwz() -> ShardedMethod:
    """ZeRO++'s qwZ: weights are gathered as integers of eight bits with a scale for each block of 256.

    The owner's shard stays exact, and the owner computes with what it sent, as everybody does. Block size and symmetry
    of the published kernels depend on shapes; these are fixed.
    """
    return ShardedMethod(weights="int8(256)")


@technique(
    "zeropp_hpz",
    axis="architecture",
    paper="Wang, Qin, Jacobs et al. (ZeRO++), arXiv 2306.10209, ICLR 2024",
    why_no_word=_NO_WORD.format(name="zeropp_hpz"),
)
def zeropp_hpz(host: int = 8) -> ShardedMethod:
    """ZeRO++'s hpZ: after forward each worker keeps a slice for the workers of its host, which backward gathers there.

    `fully_shard(…, reshard_after_forward=host)` does it; what it gathers inside a host is sent as it is.
    """
    return ShardedMethod(reshard_after_forward=host)


@technique(
    "zeropp_qgz",
    axis="architecture",
    paper="Wang, Qin, Jacobs et al. (ZeRO++), arXiv 2306.10209, ICLR 2024",
    why_no_word=_NO_WORD.format(name="zeropp_qgz"),
)
def zeropp_qgz() -> ShardedMethod:
    """ZeRO++'s qgZ: gradients go to owners in four bits, inside hosts and then across, each value rounded twice.

    Owners add up in float32. `fully_shard` hands the gradients of a module over as one flat tensor, so that vectors
    are coded too, which the published program sends as they are; hops of chunks are not pipelined. On eight workers two
    hops lose less than a ring that rounds at each hop.
    """
    bits = "int4(128)"
    return ShardedMethod(alone=bits, inside=bits, across=bits)


@technique(
    "zero_plus_plus",
    axis="architecture",
    aliases=["zeropp"],
    paper="Wang, Qin, Jacobs et al. (ZeRO++), arXiv 2306.10209, ICLR 2024",
    why_no_word=_NO_WORD.format(name="zero_plus_plus"),
)
def zero_plus_plus(host: int = 8) -> ShardedMethod:
    """ZeRO++: qwZ, hpZ and qgZ together: a quarter of the traffic between hosts that stage 3 has in 16 bits."""
    bits = zeropp_qgz()
    return ShardedMethod(bits.alone, bits.inside, bits.across, zeropp_qwz().weights, host)


@technique(
    "sdp4bit",
    axis="architecture",
    paper="Jia, Xie, Lu et al., NeurIPS 2024, arXiv 2410.15526",
    why_no_word=_NO_WORD.format(name="sdp4bit"),
)
def sdp4bit() -> ShardedMethod:
    """SDP4Bit: four bits both ways: weights as differences from the copy that all have, gradients after a transform.

    Gradients are in eight bits inside hosts and in four between them, each block of 32 multiplied with a Hadamard
    matrix before. Every worker keeps the copy of all weights, from which backward takes them without a gather.
    Readings chosen: differences are to the copy, not to the last exact weights; rounding is to the nearest; 128 weights
    share a scale, where the authors' programs have 2,048. On digits
    with Adam and four workers the loss after 200 steps is 2.5 % above that of 16 bits, and 7.3 % where the weights
    themselves take four bits (means of three seeds); differences of weights alone cost less than 1 %. Most of it
    is the transform's, since pixels that are never negative give blocks of gradients one sign. A small language model
    ended 0.3, 1.1 and 0.3 % above plain sharding with three seeds after 500 steps on Shakespeare.
    """
    four = "int4(128)+hadamard(32)"
    return ShardedMethod(four, "int8(128)", four, "int4(128)+ef21")


def loco(codec: str = "strided_bits(4, 128)") -> ShardedMethod:
    """LoCo's sharded form: gradients in four bits with a memory of one byte a value, weights as they are.

    Its row is `loco_adaptor`; the bare name is a word of compression, which stands behind another one and is no
    strategy, so that among shards it is free for the method.
    """
    bits = f"{codec}+loco"
    return ShardedMethod(bits, bits, bits)


_METHODS = (zero_sharded_dp, zeropp_qwz, zeropp_hpz, zeropp_qgz, zero_plus_plus, sdp4bit)


def sharded_method(name: str) -> ShardedMethod | None:
    """Return the method of this name, with its defaults, or None where it is none."""
    if name == "loco":
        return loco()
    for entry in entries("architecture"):
        for method in _METHODS:
            if entry.target is method and entry.answers_to([name]):
                return method()  # type: ignore[no-any-return]
    return None


@dataclass(frozen=True)
class Sharding:
    """A way to shard a model, as `laconic plan` prices it, and what to write for it.

    - `title`: what people call it.
    - `strategy`: what `distribute` is given.
    - `stage`: ZeRO's, which tells what of the state is sharded.
    - `replicated`: whether each host holds the whole model and hosts average gradients (HSDP).
    """

    title: str
    strategy: str
    method: ShardedMethod
    stage: int = 3
    replicated: bool = False

    @property
    def exact(self) -> bool:
        """Whether it computes what plain data parallelism does."""
        return {self.method.alone, self.method.inside, self.method.across, self.method.weights} == {"none"}

    def line(self, hosts: int, inside: int) -> str:
        """Return the lines to write for so many hosts of so many GPUs; `blocks` are the model's."""
        reshard = self.method.reshard_after_forward
        how = "" if reshard is True else f", reshard_after_forward={reshard}"
        given, mesh = f'optimizer, "{self.strategy}"', ""
        if self.replicated:
            names = 'mesh_dim_names=("replica", "shard")'
            mesh = f'mesh = laconic.init_device_mesh("cuda", ({hosts}, {inside}), {names})\n'
            how, given = f'{how}, mesh=mesh["shard"]', f"{given}, mesh=mesh"
        calls = f"for part in (*blocks, model):  # before the optimizer is made\n    fully_shard(part{how})"
        return f"{mesh}{calls}\nmodel, optimizer = laconic.distribute(model, {given})"


def shardings(inside: int, hosts: int) -> list[Sharding]:
    """Return the ways to shard a model over so many hosts of so many workers: those that differ there."""
    found = [Sharding(f"ZeRO stage {stage}", "zero", zero_sharded_dp(stage), stage) for stage in (1, 2, 3)]
    several = hosts > 1 and inside > 1
    if several:
        found.append(Sharding("HSDP", "zero", zero_sharded_dp(), replicated=True))
        found.append(Sharding("ZeRO++ hpZ", "zeropp_hpz", zeropp_hpz(inside)))
    found.append(Sharding("ZeRO++ qwZ", "zeropp_qwz", zeropp_qwz()))
    found.append(Sharding("ZeRO++ qgZ", "zeropp_qgz", zeropp_qgz()))
    whole = zero_plus_plus(inside) if several else ShardedMethod(zeropp_qgz().alone, weights=zeropp_qwz().weights)
    found.append(Sharding("ZeRO++", "zero_plus_plus", whole))
    found.append(Sharding("SDP4Bit", "sdp4bit", sdp4bit()))
    remembering = loco(zeropp_qgz().alone)
    words = remembering.gradients("node", "host") if several else remembering.gradients()
    return [*found, Sharding("LoCo", words, remembering)]
