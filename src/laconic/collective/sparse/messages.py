"""Streams as messages: each header goes first, as control, so that its receiver knows how long the body is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from laconic.collective.ragged import ReadByHost, gather_known
from laconic.collective.sparse.stream import Stream
from laconic.worker import Communication, Group


def swap_streams(
    outgoing: dict[int, Stream], incoming: Sequence[int], numel: int, like: torch.Tensor, group: Group
) -> Communication[dict[int, Stream]]:
    """Send streams to these members, and receive one of so many values from each of those, at the same time."""
    heads = {peer: like.new_tensor([stream.header], dtype=torch.int64) for peer, stream in outgoing.items()}
    found = {peer: like.new_empty(1, dtype=torch.int64) for peer in incoming}
    handles = group.swap([(x, j) for j, x in heads.items()], [(x, j) for j, x in found.items()], control=1.0)
    yield [ReadByHost(handle) for handle in handles]
    headers = {peer: int(head) for peer, head in found.items()}
    bodies = {
        peer: like.new_empty(Stream.body_bytes(header, numel, like.element_size()), dtype=torch.uint8)
        for peer, header in headers.items()
    }
    sends = [(stream.body(), peer) for peer, stream in outgoing.items() if stream.header]
    handles = group.swap(sends, [(body, peer) for peer, body in bodies.items() if len(body)])
    if handles:
        yield list(handles)
    return {peer: Stream.read(headers[peer], body, numel, like.dtype) for peer, body in bodies.items()}


def scatter_streams(parts: Sequence[Stream], like: torch.Tensor, group: Group) -> Communication[list[Stream]]:
    """Send the j-th stream to member j, all of equal numbers of values for one member; return this member's."""
    own, numel = like.new_tensor([part.header for part in parts], dtype=torch.int64), parts[group.rank].numel
    headers = (yield ReadByHost(group.all_to_all(own, control=1.0))).tolist()
    bodies = [part.body() for part in parts]
    lengths = [Stream.body_bytes(header, numel, like.element_size()) for header in headers]
    joined = yield group.all_to_all(torch.cat(bodies), [len(body) for body in bodies], lengths)
    pieces = joined.split(lengths)
    return [Stream.read(header, body, numel, like.dtype) for header, body in zip(headers, pieces, strict=True)]


def gather_streams(own: Stream, numels: Sequence[int], like: torch.Tensor, group: Group) -> Communication[list[Stream]]:
    """Give every member every member's stream, of which all know how many values it stands for."""
    header = like.new_tensor([own.header], dtype=torch.int64)
    headers = (yield ReadByHost(group.all_gather(header, control=1.0))).view(-1).tolist()
    lengths = [Stream.body_bytes(h, n, like.element_size()) for h, n in zip(headers, numels, strict=True)]
    rows = yield from gather_known(own.body(), lengths, group)
    return [Stream.read(h, row, n, like.dtype) for h, row, n in zip(headers, rows, numels, strict=True)]
