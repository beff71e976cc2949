"""The command line: ``shmgpu demo``, ``doctor``, ``up``, ``list``, ``serve``, ``top`` and more.

Owns arguments, exit statuses, and what a saved trace's summary and the doctor's findings look
like. A misuse or a failure that shmgpu knows ends in one sentence on standard error: status 2
for arguments, else 1.
"""

from __future__ import annotations

import argparse
import grp
import importlib.metadata
import json
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from shmgpu import doctor
from shmgpu.attach import control, endpoint, spawn
from shmgpu.broker import daemon
from shmgpu.common import config, devices, logs, module_loader
from shmgpu.errors import ConfigError, NotRunning, ShmError
from shmgpu.serve import options as flags
from shmgpu.watch import top, trace
from shmgpu.watch.tables import align

INTERRUPTED = 130  # as a shell counts what SIGINT ended, and what SIGPIPE did
NOBODY_READS = 141
NO_GROUP = (1 << 32) - 1  # gid_t's "leave it as it is"
MOST_CHILDREN = 512  # so that each has a held-out image to classify
DEMO_TRACE = "shmgpu-demo.trace.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command: its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except ShmError as error:
        print(f"shmgpu: {_as_flags(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has had enough; the interpreter must not try to flush to them at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS


def _as_flags(sentence: str) -> str:
    """What Python calls ``path=``, a shell does ``--path``."""
    return re.sub(
        r"(?<!\w)path=(['\"]?)", lambda found: "--path" + " " * bool(found[1]) + found[1], sentence
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shmgpu",
        description="Many CPU processes share few deep-learning sessions, without copies.",
    )
    parser.add_argument(
        "--version", action="version", version=f"shmgpu {importlib.metadata.version('shmgpu')}"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="train and serve on real data, beside multiprocessing",
        description="Train a small network on handwritten digits in a helper, let child "
        "processes classify held-out ones through helpers, prove from outside that no payload "
        "passed between processes, and do the same through multiprocessing. "
        "Needs shmgpu[demo].",
    )
    add = demo.add_argument
    add(
        "--children",
        type=_whole(1, MOST_CHILDREN),
        default=32,
        metavar="N",
        help="child processes (32)",
    )
    add("--helpers", type=_whole(1, 64), default=2, metavar="N", help="helper processes (2)")
    add("--seconds", type=_seconds, default=5.0, metavar="S", help="how long each side serves (5)")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:0 (the machine's GPUs, else cpu)")
    add("--trace", metavar="PATH", default=DEMO_TRACE, help=f"where the trace goes ({DEMO_TRACE})")
    add("--no-baseline", action="store_true", help="leave multiprocessing out of it")
    add("--json", metavar="FILE", help="write the figures there too")
    demo.set_defaults(run=_demo)

    examined = commands.add_parser(
        "doctor",
        help="say whether a launch would do well on this machine",
        description="Check kernel, limits, memory, processors, GPUs and this environment for a "
        "launch of the size given, and say what mends what is not fine. What is left away is as "
        "SHMGPU_ variables have it. Status 1 when something would fail.",
    )
    add = examined.add_argument
    add("--children", type=_setting("children"), metavar="N", help="child processes")
    add("--helpers", type=_setting("helpers"), metavar="N", help="helper processes")
    add("--arena", type=_setting("arena"), metavar="SIZE", help="of each child, such as 64MiB")
    add("--scratch", type=_setting("scratch"), metavar="SIZE", help="region of each helper")
    add("--window", type=_setting("window"), metavar="N", help="messages out for each child")
    add("--threads", type=_setting("threads"), metavar="N", help="of each CPU helper")
    add(
        "--devices",
        type=_devices,
        default=[],
        metavar="NAMES",
        help="taken in turn, such as cuda:0,cuda:1 or cpu (the machine's GPUs, else cpu)",
    )
    add("--gpu-memory", type=_setting("gpu_memory"), metavar="SIZE", help="cap of each helper")
    add("--huge-pages", action="store_true", default=None, help="arenas ask for huge pages")
    add("--prefault", action="store_true", default=None, help="arenas are populated at launch")
    add("--quiet", "-q", action="store_true", help="print only what is not fine")
    add("--json", action="store_true", help="print the findings as JSON")
    examined.set_defaults(run=_doctor)

    standing = commands.add_parser(
        "up",
        help="run a broker that programs join",
        description="Run a broker with the decorated functions of some modules, for programs that "
        "are started later and call shmgpu.connect(). A function named load in the first module "
        "that has one makes the sessions. SIGTERM and Ctrl-C end it in order, SIGHUP has it read "
        "the quotas anew. What is left away is as SHMGPU_ variables have it.",
    )
    add = standing.add_argument
    add("modules", nargs="+", metavar="MODULE", help="a module's name, or a file ending in .py")
    add("--helpers", type=_pools, metavar="N", help="helper processes; POOL=N,POOL=N for pools (1)")
    add(
        "--max-helpers",
        type=_pools,
        metavar="N",
        help="how many shmgpu scale may ask for, likewise (as many as --helpers)",
    )
    add("--devices", type=_devices, metavar="NAMES", help="taken in turn, such as cuda:0,cuda:1")
    add("--arena", type=_setting("arena"), metavar="SIZE", help="of each program, such as 64MiB")
    add(
        "--max-children",
        type=_setting("max_children"),
        metavar="N",
        help="programs at once (64)",
    )
    add("--window", type=_setting("window"), metavar="N", help="messages out for each program")
    add("--threads", type=_setting("threads"), metavar="N", help="of each CPU helper")
    add("--gpu-memory", type=_setting("gpu_memory"), metavar="SIZE", help="cap of each helper")
    add("--session", metavar="MODULE:NAME", help="the session function (load of a MODULE)")
    add("--path", metavar="PATH", help="of the socket (in the user's runtime directory)")
    add("--group", metavar="NAME", help="a group whose members may join, too")
    add(
        "--trust-group",
        action="store_true",
        help="let its members call functions with pickle=True, and so run code as you",
    )
    add("--quotas", metavar="FILE", help="what users and programs may use (see the README)")
    add(
        "--idle-timeout",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="end when nobody has been joined for so long (never)",
    )
    add("--detach", action="store_true", help="return when it is ready, and let it run on")
    standing.set_defaults(run=_up)

    served = commands.add_parser(
        "serve",
        help="serve models over HTTP to clients of the Open Inference Protocol",
        description="Start workers that speak the Open Inference Protocol, version 2, and helpers "
        "that run the models; requests and answers are passed between them without a copy. "
        "Needs shmgpu[serve].",
    )
    flags.add_arguments(served)

    changed = commands.add_parser(
        "scale",
        help="give a running broker more helpers, or fewer",
        description="Have a pool of a running broker of yours have N helpers. Those that are "
        "missing are started; one that is not needed any more finishes what it holds, and ends.",
    )
    add = changed.add_argument
    add("helpers", type=_pools, metavar="N", help="or POOL=N,POOL=N where there are pools")
    add("--path", metavar="PATH", help="of the broker's socket")
    changed.set_defaults(run=_scale)

    listed = commands.add_parser(
        "list",
        help="name the brokers that run, with their logs",
        description="Name the running brokers of yours: the one of shmgpu up, and those that "
        "programs have started, each with its socket, and the log that has what it and its "
        "helpers print.",
    )
    listed.add_argument("--path", metavar="PATH", help="of one broker's socket")
    listed.set_defaults(run=_list)

    ended = commands.add_parser(
        "down",
        help="end a running broker in order",
        description="Have a running broker of yours finish what its helpers hold, and end.",
    )
    add = ended.add_argument
    add("--path", metavar="PATH", help="of the broker's socket")
    add("--timeout", type=_seconds, default=60.0, metavar="S", help="to wait for its end (60)")
    add("--all", action="store_true", help="that one, and all that started by themselves")
    ended.set_defaults(run=_down)

    live = commands.add_parser(
        "top",
        help="watch a running broker",
        description="Show live what a running broker of yours counts: helpers, functions, "
        "children, queues, rates, latencies, arenas, restarts. Needs shmgpu[top], but for --once.",
    )
    add = live.add_argument
    add("pid", type=_whole(1, 1 << 30), nargs="?", metavar="PID", help="of the broker's parent")
    add("--once", action="store_true", help="print one sample and end")
    add("--json", action="store_true", help="with --once: as one JSON object")
    add("--interval", type=_seconds, default=1.0, metavar="S", help="between samples (1)")
    live.set_defaults(run=_top)

    summary = commands.add_parser(
        "trace",
        help="summarise saved traces",
        description="Summarise traces that launch(trace_path=...), write_trace() or the demo "
        "wrote: how busy each helper was, how long each function's calls took, batch sizes; and "
        "those of shmgpu.debug: operations, moves, what helpers hold.",
    )
    summary.add_argument("files", metavar="FILE", nargs="+", help="a saved trace")
    summary.add_argument(
        "--png", action="store_true", help="draw each one's timeline beside it, as FILE.png"
    )
    summary.set_defaults(run=_trace)
    return parser


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} to {high}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to 3600")
    return seconds


def _setting(name: str) -> Callable[[str], Any]:
    """A reader of a setting's text, whose complaints are argparse's."""

    def parse(text: str) -> Any:
        try:
            return config.SETTINGS[name].parse(text, name)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _pools(text: str) -> int | dict[str, int]:
    """``2``, or ``small=1,large=2``."""
    number = _whole(1, 64)
    if "=" not in text:
        return number(text)
    pairs = [pair.partition("=") for pair in text.split(",")]
    return {name.strip(): number(count.strip()) for name, _, count in pairs}


def _devices(text: str) -> list[str]:
    try:
        return [devices.name_of(name.strip()) for name in text.split(",")]
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# ---- shmgpu demo ---------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> int:
    # Here, because it imports torch, which the other commands do without.
    from shmgpu.demo import run

    return run.run(
        run.Options(
            children=options.children,
            helpers=options.helpers,
            seconds=options.seconds,
            device=options.device,
            trace=options.trace,
            baseline=not options.no_baseline,
            json=options.json,
        )
    )


# ---- shmgpu doctor -------------------------------------------------------------------------

COLOURS = {doctor.OK: "32", doctor.WARNING: "33", doctor.FAILURE: "31;1"}


def _doctor(options: argparse.Namespace) -> int:
    names = doctor.Plan.__dataclass_fields__
    plan = doctor.Plan.resolve(**{name: getattr(options, name) for name in names})
    findings = doctor.examine(plan)
    failures = sum(finding.status == doctor.FAILURE for finding in findings)
    if options.json:
        told = {
            "shmgpu": importlib.metadata.version("shmgpu"),
            "plan": asdict(plan),
            "failures": failures,
            "warnings": sum(finding.status == doctor.WARNING for finding in findings),
            "findings": [asdict(finding) for finding in findings],
        }
        print(json.dumps(told, indent=2))
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        width = shutil.get_terminal_size().columns
        colour = not os.environ.get("NO_COLOR")
        print(show(plan, findings, quiet=options.quiet, width=width, colour=colour))
    else:
        print(show(plan, findings, quiet=options.quiet))
    return int(failures > 0)


def show(
    plan: doctor.Plan,
    findings: Sequence[doctor.Finding],
    *,
    quiet: bool = False,
    width: int = 0,
    colour: bool = False,
) -> str:
    """Findings as text: a line for each, and one for its remedy, folded at ``width`` if given."""
    shown = [one for one in findings if not quiet or one.status != doctor.OK]
    status_width = max(len(status) for status in COLOURS)
    margin = 2 + status_width + 2 + max((len(one.name) for one in shown), default=0) + 2
    lines = [f"{plan.describe()}:"]
    group = ""
    for finding in shown:
        if finding.group != group:
            group = finding.group
            lines += ["", group]
        texts = [finding.sentence, *([f"fix: {finding.fix}"] if finding.fix else [])]
        if width > margin + 20:
            texts = [
                part
                for text in texts
                for part in textwrap.wrap(
                    text, width - margin, break_long_words=False, break_on_hyphens=False
                )
            ]
        status = finding.status.ljust(status_width)
        if colour:
            status = f"\x1b[{COLOURS[finding.status]}m{status}\x1b[0m"
        name = finding.name.ljust(margin - status_width - 4)
        lines.append(f"  {status}  {name}{texts[0]}")
        lines += [" " * margin + text for text in texts[1:]]
    counts = [sum(one.status == status for one in findings) for status in COLOURS]
    fine, warnings, failures = counts
    lines += [
        "",
        f"{len(findings)} checks: {fine} fine, {warnings} warning{'s' * (warnings != 1)}, "
        f"{failures} failure{'s' * (failures != 1)}.",
    ]
    return "\n".join(lines)


# ---- shmgpu up, scale, list, down ----------------------------------------------------------------


def _up(options: argparse.Namespace) -> int:
    settings = {
        "slots": config.resolve("max_children", options.max_children) or 64,
        "idle_timeout": options.idle_timeout,
        "group": _group(options.group),
        "trust_group": options.trust_group,
        "quotas_file": options.quotas and os.path.abspath(options.quotas),
        **{
            name: getattr(options, name)
            for name in (
                *("helpers", "max_helpers", "devices", "arena", "window", "threads"),
                *("gpu_memory", "session"),
            )
        },
    }
    if options.detach:
        place = endpoint.path_of(options.path)
        try:
            spawn.start(options.modules, place, **settings)
        except KeyboardInterrupt:
            print("shmgpu: interrupted: the broker was told to end", file=sys.stderr)
            raise
        print(f"a broker serves at {place}; its log is {endpoint.beside(place, '.log')}")
        return 0

    def ready() -> None:
        place = endpoint.path_of(options.path)
        print(f"a broker serves at {place}: end it with Ctrl-C, or with shmgpu down", flush=True)

    logs.write_by_line()
    try:
        daemon.up(options.modules, path=options.path, on_ready=ready, **settings)
    except module_loader.NotLoaded as error:
        print(f"shmgpu: {error}\n\n{error.traceback_text}", end="", file=sys.stderr)
        return 1
    except SystemExit as ended:  # it was asked to, and has drained
        return 0 if ended.code == 128 + signal.SIGTERM else 1
    return 0


def _group(name: str | None) -> int | None:
    if name is None:
        return None
    try:
        number = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"--group {name}: there is no such group here") from None
    if number >= NO_GROUP:
        raise ConfigError(f"--group {name}: no group has a number from {NO_GROUP} on")
    if number == 0:
        raise ConfigError("--group root lets nobody in who may not come anyway: leave it away")
    return number


def _scale(options: argparse.Namespace) -> int:
    for scaled in control.scale(options.helpers, path=options.path):
        print(scaled)
    return 0


def _list(options: argparse.Namespace) -> int:
    found = control.listed(options.path)
    print("\n".join(map(str, found)) or "no broker of yours runs")
    return 0


def _down(options: argparse.Namespace) -> int:
    many = control.all_running(options.path) if options.all else []
    status = 0
    for path in many or [options.path]:
        try:
            pid = control.down(path=path, timeout=options.timeout)
        except ShmError as error:  # the others are ended, too
            if len(many) < 2:
                raise
            if not isinstance(error, NotRunning):  # it has just ended
                print(f"shmgpu: {error}", file=sys.stderr)
                status = 1
        else:
            print(f"the broker, process {pid}, has ended")
    return status


# ---- shmgpu top ----------------------------------------------------------------------------


def _top(options: argparse.Namespace) -> int:
    return top.run(
        top.Options(
            pid=options.pid, once=options.once, json=options.json, interval=options.interval
        )
    )


# ---- shmgpu trace --------------------------------------------------------------------------


class BadTrace(ShmError):
    """A file is no trace that shmgpu wrote."""


@dataclass
class HelperUse:
    """What one helper did."""

    busy_us: float = 0.0
    batches: list[int] = field(default_factory=list)  # calls run as one, each time


@dataclass
class FunctionUse:
    """How a function's calls fared: microseconds from queued to answered, and to handed over."""

    answered_us: list[float] = field(default_factory=list)
    waited_us: list[float] = field(default_factory=list)
    failed: int = 0


@dataclass
class Summary:
    """What a trace says, added up."""

    span_us: float = 0.0
    helpers: dict[int, HelperUse] = field(default_factory=dict)
    functions: dict[str, FunctionUse] = field(default_factory=dict)


def summarise(events: Sequence[dict[str, Any]]) -> Summary:
    """Add up the trace events of :mod:`shmgpu.watch.trace`.

    Raises:
        BadTrace: an event lacks what shmgpu writes.
    """
    made = Summary()
    first, last = np.inf, -np.inf
    began: dict[int, float] = {}
    try:
        for event in events:
            if event["ph"] in "MC":
                continue
            at, number = float(event["ts"]), int(event.get("id", -1))
            first, last = min(first, at), max(last, at + float(event.get("dur", 0.0)))
            if event["ph"] == "X" and event["pid"] == trace.HELPERS_PID:
                use = made.helpers.setdefault(int(event["tid"]), HelperUse())
                use.busy_us += float(event["dur"])
                use.batches.append(int(event["args"]["batch"]))
            elif event["ph"] == "b":
                began[number] = at
                called = made.functions.setdefault(str(event["name"]), FunctionUse())
                called.failed += event["args"]["status"] != "SHM_OK"
                handed_to = called
            elif event["ph"] == "n":
                handed_to.waited_us.append(at - began[number])
            elif event["ph"] == "e":
                called = made.functions[str(event["name"])]
                called.answered_us.append(at - began.pop(number))
    except (KeyError, TypeError, ValueError, UnboundLocalError) as error:
        raise BadTrace(f"an event is not as shmgpu writes it ({error!r})") from error
    made.span_us = max(0.0, last - first)
    return made


def _trace(options: argparse.Namespace) -> int:
    # Here, because they name tensors, and who does that computes with torch: `up` would import it.
    from shmgpu.tensors.debug import saved as debug_trace
    from shmgpu.watch import timeline

    for index, path in enumerate(options.files):
        try:
            with open(path, encoding="utf-8") as file:
                saved = json.load(file)
            summary = summarise(saved["traceEvents"])
            tensors = debug_trace.describe(saved)
        except OSError as error:
            raise BadTrace(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, BadTrace) as error:
            raise BadTrace(
                f"{path} is no trace that shmgpu wrote: give a file from launch(trace_path=...)"
            ) from error
        print("\n" * (index > 0) + f"{path}\n\n{tensors or describe(summary)}")
        if options.png:
            picture = f"{os.path.splitext(path)[0]}.png"
            count = timeline.draw(saved["traceEvents"], picture, os.path.basename(path))
            print(f"\n{picture}: a timeline of {count:,} runs")
    return 0


def describe(summary: Summary) -> str:
    """A summary as tables."""
    if not summary.functions:
        return "No call was traced."
    calls = sum(len(use.answered_us) for use in summary.functions.values())
    seconds = summary.span_us / 1e6
    parts = [f"{calls:,} calls in {seconds:.3f} s"]

    lines = [["helper", "busy", "runs", "calls", "mean batch"]]
    sizes: list[int] = []
    for number, helper in sorted(summary.helpers.items()):
        sizes += helper.batches
        share = helper.busy_us / summary.span_us if summary.span_us else 0.0
        lines.append(
            [
                str(number),
                f"{100 * share:.1f} %",
                f"{len(helper.batches):,}",
                f"{sum(helper.batches):,}",
                f"{np.mean(helper.batches):.1f}",
            ]
        )
    parts.append(align(lines))

    lines = [["function", "calls", "failed", "p50", "p90", "p99", "max", "queued p50"]]
    for name, use in sorted(summary.functions.items()):
        answered = np.quantile(use.answered_us or [np.nan], [0.5, 0.9, 0.99, 1.0])
        lines.append(
            [
                name,
                f"{len(use.answered_us):,}",
                f"{use.failed:,}",
                *(f"{value:,.1f} us" for value in answered),
                f"{np.median(use.waited_us or [np.nan]):,.1f} us",
            ]
        )
    parts.append(align(lines))

    if sizes:
        lines = [["calls a run", "runs", "share", ""]]
        edges = [1 << power for power in range(max(sizes).bit_length())]
        for low in edges:
            count = sum(low <= size < 2 * low for size in sizes)
            share = count / len(sizes)
            label = str(low) if low == 1 else f"{low} to {2 * low - 1}"
            lines.append([label, f"{count:,}", f"{100 * share:.1f} %", "#" * round(30 * share)])
        parts.append(align(lines, left=(0, 3)))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
