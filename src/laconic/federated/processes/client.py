"""A process that is home to clients: it asks for work and reports, until the run is over."""

from __future__ import annotations

from laconic.errors import LaconicError
from laconic.federated.client_memory import ClientMemory
from laconic.federated.population import Population
from laconic.federated.processes.clients import Clients
from laconic.federated.processes.coordinator import ADDRESS
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Task
from laconic.rpc.endpoint import Endpoint
from laconic.worker import ActorMessage


class ClientProcess:
    """The clients of one process.

    A client's memory is replaced once the server holds on disk that the report to which it belongs was taken: whoever
    is killed at whatever time, memory and server agree.

    - `memory`, `pending`: where clients keep what they remember, and what they will if their last report is taken.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        task: Task,
        population: Population,
        strategy: FederatedStrategy,
        seed: int,
        memory: ClientMemory,
        pending: ClientMemory,
    ) -> None:
        self._endpoint = endpoint
        self._clients = Clients(task, population, strategy, seed, memory, pending, self._settle)

    def serve(self) -> None:
        """Take part until the run is over."""
        self._ask(ActorMessage("join"), writes=True)
        while (
            work := self._ask(ActorMessage("work", {"edition": self._clients.edition}), writes=False)
        ).kind != "done":
            report = self._clients.answer(work)
            if report is not None:
                self._endpoint.call(ADDRESS, report, writes=True).wait()

    def _settle(self) -> None:
        self._ask(ActorMessage("settle"), writes=True)  # comes after what was taken, and is in no snapshot before it
        self._endpoint.make_durable()

    def _ask(self, message: ActorMessage, writes: bool) -> ActorMessage:
        answer = self._endpoint.call(ADDRESS, message, writes).wait()
        if answer.kind == "refused":
            raise LaconicError(f"the server refuses this process: {answer.fields.get('why')}")
        return answer
