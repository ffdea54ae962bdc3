"""Expert parallelism: the experts of a model's layers are cut among the devices of a mesh."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from laconic.errors import LaconicError
from laconic.parallel.device_groups import groups_of
from laconic.parallel.experts.exchange import Direction, Exchange
from laconic.parallel.experts.layer import layers_of_experts
from laconic.parallel.message_code import MessageCode
from laconic.real.connect import connect
from laconic.registry import technique
from laconic.runtime.cuts import cut_along
from laconic.worker import Group


@technique(
    "expert_parallel",
    axis="parallel",
    paper="Shazeer et al., ICLR 2017; Lepikhin et al. (GShard), ICLR 2021; Fedus, Zoph and Shazeer (Switch), JMLR 2022",
    why_no_word="It cuts a model's experts before training; write `shard_experts(model, mesh, forward='int8(256)')`.",
)
def shard_experts(
    model: nn.Module,
    mesh: DeviceMesh,
    along: str = "ep",
    *,
    forward: str = "none",
    backward: str = "none",
    seed: int = 0,
) -> nn.Module:
    """Cut the experts of a model's `MixtureOfExperts` among the devices of a mesh, and return the model.

    Each device has tokens of its own and calls the layers as before: their tokens travel by all-to-all to the devices
    of the experts that the router chose, and the outputs back; gradients take the same ways backward. Device r of n
    keeps the r-th n-th of the experts, under their names in the whole model. All devices must begin with equal
    parameters.

    Devices send the rows that there are, not as many as an expert has room for: nothing is padded, and no token need be
    dropped. Before, they gather how many tokens chose each expert (control data), from which each knows all lengths and
    which tokens find room: those of one process that has the tokens of all devices along `along`, in their order.

    Gradients: the gradient of an expert comes from the tokens of all devices along `along`, as a sum of what the loss
    of each has to say; it is divided by their number, so that it is that of the mean of their losses, as what
    `laconic.distribute` makes of parameters that are whole. There experts count as cut along `along`: a sentence
    averages them over their copies alone. Where devices have unequal numbers of tokens and the loss is a mean over
    tokens, let each device multiply its mean by its number of tokens over the mean number.

    - `mesh`: the devices that have different tokens. Along other dimensions than `along` experts have copies.
    - `forward`, `backward`: how activations and their gradients are encoded on their way: any compression whose
      messages have a known length, such as `cast_bf16`, `int8(256)` or, with a mean that is right,
      `int8(256, rounding=stochastic)`. What is not encoded travels as it is.
    - `seed`: of codes that draw random numbers.
    """
    layers = layers_of_experts(model)
    if not layers:
        raise LaconicError("the model has no MixtureOfExperts; make one of a router and its experts")
    groups = groups_of(mesh)
    ways: dict[Direction, str] = {"forward": forward, "backward": backward}
    codes = {way: code for way, text in ways.items() if (code := MessageCode.of(text)) is not None}
    exchange = Exchange(connect(), _along(groups, along), codes, seed)
    devices = mesh if mesh.ndim == 1 else mesh[along]
    others = [group for name, group in groups.items() if group is not exchange.group]
    for name, layer in layers.items():
        layer.cut(exchange, others, name)
        cut_along(layer.experts.parameters(), devices)
        for parameter in layer.experts.parameters():
            parameter.register_hook(lambda gradient: gradient / exchange.group.size)
    return model


def _along(groups: dict[str, Group], name: str) -> Group:
    if len(groups) == 1:
        return next(iter(groups.values()))
    if name not in groups:
        raise LaconicError(f"the mesh has the dimensions {', '.join(groups)}, and none that is called {name}")
    return groups[name]
