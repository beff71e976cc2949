"""The other end of :mod:`shmgpu.attach.spawn`: what a process started by exec does.

Owns the way from the request to a running broker, and the line on a pipe that reports the outcome.
Never returns to the program that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from shmgpu import core
from shmgpu.attach import endpoint, manifest, sources
from shmgpu.attach.endpoint import PrivateEndpoint
from shmgpu.broker import daemon, launch_config
from shmgpu.broker.role_host import RoleHost
from shmgpu.child import runtime
from shmgpu.common import config, logs, parsers
from shmgpu.common.module_loader import NotLoaded
from shmgpu.common.termination import SIGNAL_BASE
from shmgpu.errors import LaunchError, SessionError, ShmError


class StartReport:
    """The pipe to whoever started this process: one line, once."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def say(self, told: Mapping[str, Any]) -> None:
        """Say it, and that there is no more to come."""
        if self.descriptor < 0:
            return
        line = json.dumps(told).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self.descriptor, line) :]
        except BrokenPipeError:
            pass  # nobody waits for it any more
        os.close(self.descriptor)
        self.descriptor = -1

    def ready(self) -> None:
        """Programs can join."""
        self.say({"pid": os.getpid()})

    def failed(self, error: BaseException) -> None:
        """It did not come to that."""
        message = str(error)
        if not isinstance(error, ShmError):  # a type and a text only together say what it was
            message = "".join(traceback.format_exception_only(error)).strip()
        told: dict[str, Any] = {"error": type(error).__name__, "message": message}
        if isinstance(error, SessionError):
            told |= {"helper": error.helper, "traceback": error.traceback_text}
        if isinstance(error, ModuleNotFoundError) and error.name:
            told["module"] = error.name
        self.say(told)


def main(request: Mapping[str, Any]) -> None:
    """Be a broker until it ends; the interpreter's exit status says how."""
    sys.argv[:] = ["shmgpu"]
    config.leave_unknown()
    logs.write_by_line()
    os.set_inheritable(request["report"], False)
    report = StartReport(request["report"])
    try:
        if "listener" in request:
            _serve_one(request, report)
        else:
            _serve_all(request, report)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if request["outlives"] or report.descriptor < 0:
            with contextlib.suppress(
                OSError
            ):  # on a disk that is full, say, which the report tells
                _log(error)
        report.failed(error)
        sys.exit(1)


def _serve_all(request: Mapping[str, Any], report: StartReport) -> None:
    """A broker for all programs of the user; with a key, one that notes what it is made of."""
    record = None
    words = {"program": request["program"]}
    if request["key"]:
        socket_path = pathlib.Path(request["settings"]["path"])
        try:
            record = sources.Record(endpoint.beside(socket_path, ".sources"))
        except OSError as error:
            raise LaunchError(
                f"the broker cannot write beside its socket {socket_path} ({error}): free "
                "some space there, or "
                "set XDG_RUNTIME_DIR to another directory that you own"
            ) from error
        record.begin()
        idle = str(request["settings"].get("idle_timeout") or "")
        words |= {"key": request["key"], "owner": request["owner"]}
        words |= {"instance": record.instance, "idle_timeout": idle}

    def ready() -> None:  # its log may hold what older ones wrote
        with contextlib.suppress(OSError):  # the disk is full
            print(f"{time.strftime('%F %T')} process {os.getpid()} serves")
        report.ready()

    logs.date_records()
    try:
        daemon.up(
            request["modules"],
            carried=request["carried"],
            on_ready=ready,
            lent=[report.descriptor],
            words=words,
            **request["settings"],
        )
    except KeyboardInterrupt:  # it was asked to end, and has
        sys.exit(SIGNAL_BASE + signal.SIGINT)
    finally:
        if record is not None:
            record.end()


def _log(error: BaseException) -> None:
    """Say it, and where, to standard error."""
    if isinstance(error, NotLoaded):
        print(f"shmgpu: {error}\n\n{error.traceback_text}", end="", file=sys.stderr)
    elif isinstance(error, ShmError):
        print(f"shmgpu: {error}", file=sys.stderr)
    else:
        traceback.print_exc()
    sys.stderr.flush()


def _serve_one(request: Mapping[str, Any], report: StartReport) -> None:
    """A broker for the one process that is connected to its endpoint."""
    os.set_inheritable(request["listener"], False)
    listener = PrivateEndpoint.of(request["listener"])
    with runtime.loading():
        carried = pickle.loads(request["carried"])
    wanted = dict(carried["settings"])
    outputs = {name: wanted.pop(name) for name in ("progress", "trace_path")}
    slots = 1 + parsers.parse_slots(wanted.pop("slots"), "slots")
    plan = launch_config.LaunchConfig(children=0, slots=slots, **wanted)
    plan.take_functions()
    host = RoleHost(plan, [], (), outputs["progress"], outputs["trace_path"])
    host.on_ready = report.ready
    host.lent = [report.descriptor]
    known = manifest.of_this_process(plan.pools, owner=request["owner"])
    daemon.serve(host, listener, known, core.UNTIL_FIRST_LEFT)
