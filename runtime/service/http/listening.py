"""A service that answers over HTTP."""

from __future__ import annotations

import gc

from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.spec import JobSpec
from runtime.service.address import Listen
from runtime.service.http.app import make_app
from runtime.service.http.server import HttpServer, bind
from runtime.service.operations_log import OperationsLog
from runtime.service.service import RunService
from runtime.service.tokens import CommandTokens, Tokens
from runtime.short_slices import ask_for_short_slices

_COLLECTS = (10_000, 10, 70)  # thresholds of the garbage collector: under load, a full collection every few minutes


class ListeningService(RunService):
    """A service with a server, once it has been told where to listen.

    Args:
        plan: Plan of the service.
    """

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self._http: HttpServer | None = None

    async def _close(self) -> None:
        await super()._close()
        if self._http is not None:
            await self._http.close()

    async def listen(self, where: Listen, patience_s: float = 0.0) -> tuple[str, int]:
        """Listen for HTTP requests. A service that listens already stays at its place.

        Args:
            where: Place at which to listen.
            patience_s: Longest wait for a port that is in use, in seconds.

        Returns:
            The URL and the port.

        Raises:
            InputError: If the port is taken or cannot be used; one line.
        """
        if self._http is None:
            taken = await bind(where, patience_s)
            self._http = HttpServer(make_app(self, Tokens(self.folder), OperationsLog(self.folder)), taken)
            await self._http.begin()
            # Answers wait for the switch between this thread and the one that commits: make it frequent.
            # With 1,000 jobs, a full collection takes a tenth of a second, in which permits wait: let it be rare, and exclude what
            # exists from the start, modules and compiled code. Nearly all objects of a request are freed without a collection.
            ask_for_short_slices()
            gc.unfreeze()
            gc.collect()  # the run before a roll-over, which would be excluded too
            gc.freeze()
            gc.set_threshold(*_COLLECTS)
        return self._http.url, self._http.port

    async def give_access(self, token: str) -> None:
        """Let jobs with a command start: their programs ask this service, with a token each.

        Args:
            token: Token for jobs that no user has submitted.
        """
        assert self._http is not None
        url, tokens = self._http.url, CommandTokens(self.folder)

        def access(spec: JobSpec) -> dict[str, str]:
            return {"ROLLMUX_URL": url, "ROLLMUX_TOKEN": tokens.of(spec.user) if spec.user else token}

        self.driver.commands.give_access(access)
