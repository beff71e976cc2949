"""Models come and go while the server runs: load, reload, unload, and the index.

Owns the order of these steps, from any worker. A new source is loaded helper by helper beside the
old one, while the other helpers serve; one change of the table then turns all workers to it; the
old source is dropped when no request is pending with it. So no request is lost, and none is
answered half by one version and half by another.

Never runs in two workers at once: whoever changes models holds the table's long lock, which the
kernel releases when a worker dies. The next worker cleans up what that one left half done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from shmgpu.child.arguments import CallOptions
from shmgpu.child.plans import Call
from shmgpu.child.port import Port
from shmgpu.common.logs import logger
from shmgpu.errors import ConfigError, HelperDied, RemoteError, ShmError
from shmgpu.serve.models.errors import LoadFailed
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.serve.scheduling.rows import FunctionRows, ServerFunction
from shmgpu.serve.state import repository
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.counters import Counters
from shmgpu.serve.state.repository import ModelSource, entry_of

LOOK_S = 0.05  # between looks whether a lock is free, or what was pending has been answered
SETTLE_S = 0.1  # until every worker has surely seen that the table has changed
TRIES = 5  # tries to load a source in a helper's slot whose processes die
_TOLD = (ConfigError, LoadFailed)  # whose text is a sentence of ours


class _OutcomeHandler:
    """Tells a future of the loop."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def ended(self, call: Call, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Lifecycle:
    """Loading and unloading, for one worker."""

    def __init__(
        self,
        port: Port,
        table: ControlTable,
        counters: Counters,
        rows: FunctionRows,
        pools: dict[str, list[int]],
        paths: list[str],
    ) -> None:
        self.port = port
        self.table = table
        self.counters = counters
        self.loads = {name: ServerFunction(rows.load, name) for name in pools}
        self.unloads = {name: ServerFunction(rows.unload, name) for name in pools}
        self.pools = pools
        self.paths = paths

    # ---- what clients ask for --------------------------------------------------------------

    def index(self, only_ready: bool) -> list[dict[str, str]]:
        """Name, version, state and reason of every model that the server knows."""
        found = []
        for entry in self.table.read()[1]["sources"].values():
            if only_ready and entry["state"] != "READY":
                continue
            for name, version in _names(entry):
                found.append(
                    {
                        "name": name,
                        "version": version,
                        "state": entry["state"],
                        "reason": entry["reason"],
                    }
                )
        return sorted(found, key=lambda one: (one["name"], int(one["version"])))

    async def load(self, name: str) -> None:
        """Load or reload a model, in all versions that the repository has now.

        Raises:
            ProtocolError: 400: there is no such model, or it cannot be loaded.
        """
        async with self._alone():
            known = self._entries(name)
            files = {entry["path"] for entry in known.values()}
            try:
                on_disk = self._on_disk()
            except ShmError as error:
                raise ProtocolError(400, f"failed to load '{name}': {error}") from None
            wanted = [one for one in on_disk if one.name == name or one.path in files]
            if not wanted:
                raise ProtocolError(
                    400, f"failed to load '{name}': the server's repository has no such model"
                )
            await self._replace(name, wanted, known)

    async def unload(self, name: str) -> None:
        """Take a model away; what is pending with it is answered first.

        Raises:
            ProtocolError: 400: there is no such model.
        """
        async with self._alone():
            known = self._entries(name)
            if not known:
                raise ProtocolError(400, f"failed to unload '{name}': there is no such model")
            await self._retire(known)

    async def reload_when_asked(self) -> None:
        """Reload everything, as the repository is now, if SIGHUP asked for it.

        What cannot be loaded stays as it is, and the log says why.
        """
        table = self.table
        if table.reloads_done == table.reloads_asked:
            return
        async with self._alone():
            asked = table.reloads_asked
            if table.reloads_done == asked:  # another worker was faster
                return
            try:
                await self._reload_all()
            except ShmError as error:
                logger.error("the models could not be reloaded: %s", error)
            table.reloads_done = asked

    async def _reload_all(self) -> None:
        sources = self._on_disk()
        by_path: dict[str, dict[str, dict[str, Any]]] = {}
        for number, entry in self.table.read()[1]["sources"].items():
            by_path.setdefault(entry["path"], {})[number] = entry
        for source in sources:
            try:
                await self._replace(source.path, [source], by_path.pop(source.path, {}))
            except ProtocolError as error:
                logger.error("%s", error.sentence)
        for gone in by_path.values():
            await self._retire(gone)

    # ---- how it is done --------------------------------------------------------------------

    def _on_disk(self) -> list[ModelSource]:
        return repository.in_pools(repository.find_all(self.paths), list(self.pools))

    def _entries(self, name: str) -> dict[str, dict[str, Any]]:
        """The entries that have a model of that name."""
        return {
            number: entry
            for number, entry in self.table.read()[1]["sources"].items()
            if any(one == name for one, _ in _names(entry))
        }

    async def _replace(
        self, name: str, wanted: list[ModelSource], known: dict[str, dict[str, Any]]
    ) -> None:
        """Load sources in place of entries of the same path; entries without one are retired."""
        old_by_path = {entry["path"]: (number, entry) for number, entry in known.items()}
        made: list[str] = []
        with self.table.change() as state:
            for source in wanted:
                number = str(state["next_source"])
                state["next_source"] += 1
                old = old_by_path.get(source.path)
                state["sources"][number] = entry_of(
                    source,
                    is_rolled=True,
                    replaces=old[0] if old else "",
                    parity=1 - old[1]["parity"] if old else 0,
                )
                made.append(number)
        try:
            for number in made:
                for helper in self._helpers(number):
                    await self._load_in(helper, int(number))
        except ShmError as error:
            await self._drop(made)
            reason = str(error)
            if isinstance(error, RemoteError):
                is_told = any(map(error.matches, _TOLD))
                reason = error.message if is_told else f"{error.type_name}: {error.message}"
                # Where a model's own code is at fault, the traceback; else the sentence is enough.
                has_code = any(one.kind == "python" for one in wanted)
                where = error.traceback_text.rstrip() if has_code else reason
                logger.error("a model could not be loaded: %s", where)
            raise ProtocolError(400, f"failed to load '{name}': {reason}") from None
        with self.table.change() as state:
            for number in made:
                state["sources"][number]["state"] = "READY"
            for number in known:
                state["sources"][number]["state"] = "UNLOADING"
        await self._forget(known, keep=False)
        logger.info("loaded %s", name)

    async def _retire(self, known: dict[str, dict[str, Any]]) -> None:
        with self.table.change() as state:
            for number in known:
                state["sources"][number]["state"] = "UNLOADING"
        await self._forget(known, keep=True)

    async def _forget(self, known: dict[str, dict[str, Any]], keep: bool) -> None:
        """When nothing is pending with them any more, have helpers forget sources.

        ``keep``: they stay in the index, as models that may be loaded again.
        """
        if not known:
            return
        await asyncio.sleep(SETTLE_S)
        indices = self.table.read()[1]["indices"]
        for number, entry in known.items():
            rows = [indices[f"{one}\n{version}"] for one, version in _names(entry)]
            while any(self.counters.pending(row, entry["parity"]) for row in rows):
                await asyncio.sleep(LOOK_S)
            await self._unload_in(self._helpers(number), int(number))
        with self.table.change() as state:
            for number in known:
                if keep:
                    state["sources"][number].update(state="UNAVAILABLE", reason="unloaded")
                else:
                    del state["sources"][number]

    async def _drop(self, made: Iterable[str]) -> None:
        """Take away sources that were never ready."""
        helpers = {number: self._helpers(number) for number in made}
        with self.table.change() as state:
            for number in helpers:
                del state["sources"][number]
        for number, where in helpers.items():
            await self._unload_in(where, int(number))

    async def _load_in(self, helper: int, number: int) -> None:
        for attempt in range(TRIES):
            try:
                await self._ask(self.loads, helper, number)
                return
            except HelperDied:  # the slot's next process loads all that the table lists
                if attempt == TRIES - 1:
                    raise

    async def _unload_in(self, helpers: list[int], number: int) -> None:
        for helper in helpers:
            try:
                await self._ask(self.unloads, helper, number)
            except ShmError as error:  # one that died has forgotten it anyway
                logger.info("helper %d could not forget a model: %s", helper, error)

    def _helpers(self, number: str) -> list[int]:
        return self.pools[self.table.read()[1]["sources"][number]["pool"]]

    async def _ask(self, targets: dict[str, ServerFunction], helper: int, number: int) -> Any:
        """Call a row in one helper."""
        future = asyncio.get_running_loop().create_future()
        options = CallOptions(placement=1 << helper)
        pool = next(name for name, numbers in self.pools.items() if helper in numbers)
        self.port.submit(targets[pool], (number,), {}, options, _OutcomeHandler(future), False)
        return await future

    # ---- the lock --------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        while not self.table.try_hold():
            await asyncio.sleep(LOOK_S)
        try:
            await self._clear_away()
            yield
        finally:
            self.table.let_go()

    async def _clear_away(self) -> None:
        """Finish or undo what a worker that died while it held the lock had begun."""
        entries = self.table.read()[1]["sources"]
        await self._drop(
            [n for n, one in entries.items() if one["state"] == "LOADING" and one["is_rolled"]]
        )
        await self._forget(
            {n: one for n, one in entries.items() if one["state"] == "UNLOADING"}, keep=False
        )


def _names(entry: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and versions of an entry's models, as far as they are known."""
    if entry["models"]:
        return [(one["name"], one["version"]) for one in entry["models"]]
    return [(entry["name"], entry["version"])] if entry["name"] else []
