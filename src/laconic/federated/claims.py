"""Who speaks for which client, where a sender names the client itself."""

from __future__ import annotations

from laconic.errors import ContractError


class Claims:
    """Clients by the senders that first said that they are these; a sender is one client, and a client one sender."""

    def __init__(self) -> None:
        self.sender_of: dict[int, int] = {}

    def claim(self, client: int, sender: int) -> None:
        """Take a sender for a client from now on, or refuse it where another is that client, or it is another one."""
        owner = self.sender_of.get(client, sender)
        if owner != sender:
            raise ContractError(
                f"node {sender} says that it is client {client}, which node {owner} is; give each node its own number"
            )
        known = next((one for one, of in self.sender_of.items() if of == sender), client)
        if known != client:
            raise ContractError(f"node {sender} says that it is client {client}, and was client {known} before")
        self.sender_of[client] = sender
