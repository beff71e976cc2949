"""The house: which files there are, from the ground up, and in whose processes each runs.

Owns the tables that say what a file may know, and prints them: ``make house``. A file may use what
stands above it in its table (a lower floor), never what stands below. Files of a wing stand
together, so wings form no circle either. The second column says where a file runs: in a child, in
a helper, in the parent, in any of them. What runs in any uses only what does; what runs in a child
uses nothing that runs in helpers alone, and the other way round; the parent starts both and may use
all. :mod:`test_layering` holds the code to it. Whoever adds a file adds a row, and says with its
place what it may know.

What a wing is for, and what it never does, is said by the head of its first file; wings in C have
no first file, so their heads stand here. Never imports the package: it reads sources.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import signal
import sys
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]

# A row NAME stands for NAME.h and NAME.c, and for NAME_PART.c if that has no row of its own.
CORE = """
shmgpu                              any
callbacks                           parent

base/clock                          any
base/cores                          any
base/status                         any
base/error_detail                   any
base/fault                          any
base/descriptor                     any
base/passing                        any

memory/available                    any
memory/tlsf                         any
memory/arena                        any
memory/kept_file                    any

ipc/scoreboard                      any
ipc/gang                            any
ipc/word                            any
ipc/frame                           any
ipc/pipe                            any
ipc/function_table                  any
ipc/attach_handshake                any
ipc/adaptive_spin                   any

process/process                     any
process/pid1                        parent
process/signals                     any
process/role                        any

child/heap                          child
child/reply_queue                   child
child/port                          child
child/attach                        child

helper/reduction                    helper
helper/rendezvous                   helper
helper/collective                   helper
helper/helper_port                  helper

broker/schedule                     parent
broker/poll_set                     parent
broker/dispatch                     parent
broker/process_table                parent
broker/quota                        parent
broker/listener                     parent
broker/supervise                    parent
broker/launch                       parent

api                                 parent

python/graph/graph                  any
python/graph/node                   any
python/graph/record                 any
python/graph/walks                  any
python/graph/draft                  any
python/graph/template               any
python/graph/module                 any
python/draws/numbers                any
python/draws/module                 any
python/json/json                    any
python/json/powers                  any
python/json/read                    any
python/json/write                   any
python/json/module                  any
python/quick/quick                  any
python/quick/ndarray                any
python/quick/tensor                 any
python/quick/signature              any
python/quick/form                   any
python/quick/plain                  any
python/quick/ready                  any
python/quick/call                   any
python/quick/future                 any
python/quick/wake                   any
python/quick/submit                 any
python/quick/known                  any
python/quick/module                 any
python/http2/nghttp2                any
python/http2/http2                  any
python/http2/coming                 any
python/http2/going                  any
python/http2/session                any
python/http2/module                 any
"""

PYTHON = """
installed                           any
errors                              any
core/binding                        any
core/statuses                       any
core/constants                      any
core/memory                         any
core/roles                          any
core/ports                          any
core/gangs                          any
core/broadcasts                     any
core/scoreboard                     any
core/hosting                        any
core/__init__                       any
former                              any

common/wording                      any
common/parsers                      any
common/settings                     any
common/config                       any
common/settings_page                any
common/logs                         any
common/progress                     any
common/seeding                      any
common/termination                  any
common/wait_policy                  any
common/blas                         any
common/devices                      any
common/module_names                 any
common/module_loader                any
common/extensions                   any

codec/dtypes                        any
codec/records                       any
codec/pytree                        any
codec/arrays                        any
codec/layout                        any

function_table                      any

child/quick                         any
child/memory                        child
child/promise                       child
child/rooms                         child
child/plans                         child
child/transport                     child
child/tickets                       child
child/raw_calls                     child
child/gang_calls                    child
child/broadcast_calls               child
child/arguments                     child
child/prepared                      child
child/results                       child
child/replies                       child
child/port                          child
child/futures                       child
child/runtime                       child

arena                               child
functions                           child

collectives/__init__                helper
collectives/operations              helper
collectives/shared_memory           helper
collectives/staged                  helper
collectives/process_groups          helper
collectives/programs                helper
collectives/choice                  helper
collectives/in_order                helper

helper/number                       helper
helper/gang                         helper
helper/decoded                      helper
helper/late                         helper
helper/mutation_check               helper
helper/parked_results               helper
helper/hints                        helper
helper/shares                       helper
helper/arena_views                  helper
helper/known                        helper
helper/block_reader                 helper
helper/result_writer                helper
helper/executor                     helper
helper/batch_policy                 helper
helper/batch_executor               helper
helper/broadcasts                   helper
helper/lazy                         helper
helper/process                      helper
helper/inline                       helper

attach/hosts                        any
attach/endpoint                     any
attach/sources                      any
attach/carry                        any
attach/identity                     any
attach/manifest                     any
attach/spawn                        any
attach/automatic                    child
attach/control                      child
attach/preparing                    child
attach/late                         child
attach/redefined                    child
attach/membership                   child
attach/__init__                     any

watch/tables                        any
watch/html                          any
watch/stats                         any
watch/trace                         any
watch/server_counters               any
watch/monitor                       any
watch/trace_summary                 any
watch/follower                      any
watch/screen                        any
watch/exposition                    any
watch/web                           any
watch/top                           any
watch/timeline                      any

broker/exit_reports                 any
broker/events                       parent
broker/quotas                       parent
broker/launch_config                parent
broker/role_host                    parent
broker/launch                       parent
broker/daemon                       parent
broker/spawn_main                   parent
broker/spawn_bootstrap              parent

ops/graph                           any
ops/kernels                         any
ops/casting                         any
ops/promotion                       any
ops/rules                           any
ops/shaping                         any
ops/stretching                      any
ops/drawing                         any
ops/creation                        any
ops/elementwise                     any
ops/templates                       any
ops/transcendental                  any
ops/updates                         any
ops/reductions                      any
ops/linear                          any
ops/solving                         any
ops/indexing                        any
ops/brackets                        any
ops/views                           any
ops/products                        any
ops/arranging                       any
ops/rearranging                     any
ops/activations                     any
ops/normalising                     any
ops/windows                         any
ops/ordering                        any
ops/formulas                        any
ops/short_formulas                  any
ops/nonlinearities                  any
ops/batch_normalising               any
ops/signals                         any
ops/resampling                      any
ops/recomputing                     any
ops/losses                          any
ops/distances                       any
ops/redistribution                  any
ops/gang                            any
ops/collective                      any
ops/attention                       any
ops/__init__                        any
ops/page                            any
ops/program                         any
ops/program_message                 any

engine/joint                        helper
engine/cuda                         helper
engine/backends                     helper
engine/capture                      helper
engine/plan                         helper
engine/foresight                    helper
engine/expressions                  helper
engine/fusion                       helper
engine/native                       helper
engine/compile                      helper
engine/cuda_graphs                  helper
engine/session                      helper
engine/functions                    helper

distributed/placements              any
distributed/mesh                    any
distributed/layout                  any
distributed/rules/base              any
distributed/rules/elements          any
distributed/rules/moving            any
distributed/rules/reducing          any
distributed/rules/products          any
distributed/rules/solving           any
distributed/rules/normalising       any
distributed/rules/finding           any
distributed/rules/losses            any
distributed/rules/making            any
distributed/rules/__init__          any
distributed/choice                  any
distributed/moves                   any
distributed/draft                   any
distributed/builder                 any
distributed/meeting                 any
distributed/buckets                 any
distributed/lowered                 any
distributed/lowering                any
distributed/explaining               any
distributed/__init__                any

tensors/functions                   child
tensors/interop                     child
tensors/once                        child
tensors/grad_mode                   child
tensors/autograd                    child
tensors/message                     child
tensors/walks                       child
tensors/failures                    child
tensors/spreading                   child
tensors/recorder                    child
tensors/debug/rows                  child
tensors/debug/ledger                child
tensors/debug/tape                  child
tensors/debug/ticks                 child
tensors/debug/saved                 child
tensors/debug/__init__              child
tensors/autocasting                 child
tensors/current                     child
tensors/devices                     child
tensors/hooks                       child
tensors/sharing                     child
tensors/operands                    child
tensors/misuse                      child
tensors/elements                    child
tensors/base                        child
tensors/conversion                  child
tensors/generators                  child
tensors/factories                   child
tensors/operations                  child
tensors/whole                       child
tensors/tensor                      child
tensors/recomputing                 child
tensors/placement                   child
tensors/__init__                    child

optim/optimizer                     child
optim/rules                         child
optim/schedules                     child
optim/cycles                        child
optim/combined                      child
optim/lr_scheduler                  child
optim/__init__                      child
array_api/types                     child
array_api/arguments                 child
array_api/creating                  child
array_api/elementwise               child
array_api/reducing                  child
array_api/arranging                 child
array_api/info                      child
array_api/__init__                  child
autograd                            child
linalg                              child
amp                                 child
cuda                                child
saving                              child
nn/functional                       child
nn/earlier                          child
nn/module                           child
nn/state                            child
nn/containers                       child
nn/layers                           child
nn/convolution                      child
nn/normalisation                    child
nn/losses                           child
nn/simple                           child
nn/recurrent                        child
nn/attention                        child
nn/init                             child
nn/utils/rnn                        child
nn/utils/__init__                   child
nn/__init__                         child
parallel/programs                   child
parallel/message                    child
parallel/crossing                   child
parallel/mending                    child
parallel/placer                     child
parallel/device_mesh                child
parallel/tensors                    child
parallel/constraints                child
parallel/watching                   child
parallel/modules                    child
parallel/mixed_precision            child
parallel/fully_sharded              child
parallel/signals                    child
parallel/signal_files               child
debug                               child
signal                              child
messages                            child

doctor/probes                       any
doctor/machine                      any
doctor/plan                         any
doctor/verdict                      any
doctor/forking                      any
doctor/gpus                         any
doctor/kernel                       any
doctor/memory                       any
doctor/processors                   any
doctor/limits                       parent
doctor/__init__                     parent

demo/digits                         any
demo/stage                          any
demo/network                        any
demo/queues                         any
demo/serve                          parent
demo/audit                          parent
demo/report                         parent
demo/run                            parent

serve/options                       any
serve/protocol/json_numbers         any
serve/protocol/datatypes            any
serve/protocol/metadata             any
serve/protocol/types                any
serve/protocol/validation           any
serve/protocol/classification       any
serve/protocol/fields               any
serve/protocol/json_reader          any
serve/protocol/http_codec           child
serve/protocol/grpc_codec           child
serve/state/control_table           any
serve/state/log_settings            child
serve/state/regions                 any
serve/state/counters                any
serve/state/repository              any
serve/state/imported_modules        any
serve/state/source_watch            any
serve/models/region_maps            helper
serve/models/errors                 any
serve/models/sequences              any
serve/models/queue_policy           any
serve/models/declaration            any
serve/models/request_context        any
serve/models/response_parameters    any
serve/models/preprocessing          any
serve/models/adapters/sidecar       helper
serve/models/adapters/tensors       helper
serve/models/adapters/exported      helper
serve/models/adapters/onnx          helper
serve/models/adapters/torchscript   helper
serve/models/adapters/__init__      helper
serve/models/generators             helper
serve/models/cuda_graphs            helper
serve/models/conversion             helper
serve/models/gathering              helper
serve/models/loading                helper
serve/models/memory_usage           helper
serve/models/runner                 helper
serve/models/functions              helper
serve/models/__init__               any
serve/scheduling/rows               child
serve/scheduling/queues             child
serve/scheduling/catalog            child
serve/scheduling/templates          child
serve/scheduling/cache              child
serve/scheduling/statuses           child
serve/scheduling/accounting         child
serve/scheduling/pending            child
serve/scheduling/inference          child
serve/scheduling/ensembles           child
serve/scheduling/lifecycle          child
serve/scheduling/streams            child
serve/telemetry/metrics             child
serve/telemetry/spans               child
serve/frontend/aside                child
serve/frontend/documents            child
serve/frontend/acceptor             child
serve/frontend/body_memory          child
serve/frontend/request              child
serve/frontend/connection           child
serve/frontend/compression          child
serve/frontend/generate             child
serve/frontend/coalescing           child
serve/frontend/region_coalescing    child
serve/frontend/lanes                child
serve/frontend/fast_path            child
serve/frontend/json_fast_path       child
serve/frontend/access_log           child
serve/frontend/routes               child
serve/frontend/openapi              child
serve/frontend/pages                child
serve/frontend/answer_memory        child
serve/frontend/answer_pace          child
serve/frontend/message_memory       child
serve/frontend/grpc_fast_path       child
serve/frontend/grpc_inference       child
serve/frontend/grpc_services        child
serve/frontend/grpc_calls           child
serve/frontend/http2_calls          child
serve/frontend/http2_connection     child
serve/frontend/grpc_admission       child
serve/frontend/grpc_access_log      child
serve/frontend/grpc_server          child
serve/worker                        child
serve/helper_pools                  parent
serve/overview                      parent
serve/server                        parent
serve/__init__                      any

cli/arguments                       parent
cli/demo                            parent
cli/doctor                          parent
cli/brokers                         parent
cli/serve                           parent
cli/top                             parent
cli/completion                      parent
cli/trace                           parent
cli/main                            parent
__init__                            any
compat/__init__                     any
compat/gt/config                    child
compat/gt/__init__                  child
compat/gt/nn                        child
compat/gt/workers                   child
compat/gt/server                    parent
compat/gt/worker                    child
compat/netcl/collectives            child
compat/netcl/replicas               child
compat/netcl/training               child
compat/netcl/__init__               child
compat/tinygrad/device              child
compat/tinygrad/tensor              child
compat/tinygrad/methods             child
compat/tinygrad/jit                 child
compat/tinygrad/helpers             any
compat/tinygrad/nn/optim            child
compat/tinygrad/nn/state            child
compat/tinygrad/nn/__init__         child
compat/tinygrad/__init__            child
__main__                            parent
"""


# Heads of wings that have no first file, or whose first file is written for users.
HEADS = {
    "csrc": (
        "The C interface: the public header and its calls, each a few lines over a wing.",
        "does what a wing does, never prints, never exits",
    ),
    "csrc/base": (
        "What every C file may use: clock, statuses, descriptors, fault points.",
        "knows an arena, a pipe or a role",
    ),
    "csrc/memory": (
        "Arenas: how much memory there is, who maps what, and the allocator.",
        "looks at what lies in a block",
    ),
    "csrc/ipc": (
        "What processes tell each other: frames, pipes, the scoreboard, the state of gangs.",
        "decides who is served",
    ),
    "csrc/process": (
        "Processes, roles and signals, as the kernel has them.",
        "knows a call or a broker's state",
    ),
    "csrc/child": (
        "A child's end of the conversation: it sends calls, and its arena's memory is given out.",
        "runs a function",
    ),
    "csrc/helper": (
        "A helper's end: it takes calls, answers them, and meets the other members of a gang.",
        "sends a call",
    ),
    "csrc/broker": (
        "The parent: it schedules calls, forms batches, dispatches, admits programs, starts, "
        "watches and replaces processes.",
        "touches what lies in an arena",
    ),
    "csrc/python/graph": (
        "Nodes of recorded graphs and the walks over them, as a module of Python's: shmgpu._graph.",
        "knows what an operation means, never sends",
    ),
    "csrc/python/draws": (
        "Random numbers that follow from a seed, as a module of Python's: shmgpu._draws.",
        "keeps a state",
    ),
    "csrc/python/json": (
        "Arrays of numbers as JSON has them, read and written, as a module of Python's: "
        "shmgpu._json.",
        "refuses in words",
    ),
    "csrc/python/quick": (
        "Calls like an earlier one, from arguments to result, as a module of Python's: "
        "shmgpu._quick.",
        "does what a call through Python would not",
    ),
    "csrc/python/http2": (
        "HTTP/2 connections of a gRPC server, by libnghttp2, as a module of Python's: "
        "shmgpu._http2.",
        "knows a method or a model, never touches a socket",
    ),
    "shmgpu": (
        "The public face: what programs name.",
        "does what a wing does",
    ),
}

ROLES = ("any", "child", "helper", "parent")
TOP = ("csrc", "shmgpu", "benchmarks")


def rows_of(table: str) -> dict[str, str]:
    """In order: the file, and where it runs."""
    rows = dict(line.split() for line in table.splitlines() if line)
    assert len(rows) == sum(bool(line) for line in table.splitlines()), "a row stands twice"
    return rows


C_ROWS, PYTHON_ROWS = rows_of(CORE), rows_of(PYTHON)


def c_module(name: str) -> str:
    """The row of a C file, by its path without ending; a part of a module has the module's."""
    return name if name in C_ROWS else name.rpartition("_")[0] or name


@functools.cache
def docstring(path: pathlib.Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def opening(path: pathlib.Path) -> str:
    """A C file's first comment, as one line, without the stars."""
    found = re.match(r"/\*(.*?)\*/", path.read_text(encoding="utf-8"), re.DOTALL)
    text = re.sub(r"(?m)^ \* ?", "", found.group(1)) if found else ""
    return text.strip()


def plain(text: str) -> str:
    """Without the marks of a docstring's roles and code."""
    return re.sub(r"(?::\w+:)?`+([^`]+)`+", r"\1", text)


def first_line(path: pathlib.Path) -> str:
    """What a file owns: its docstring's first line, or its first comment's first sentence."""
    if path.suffix == ".py":
        return docstring(path).partition("\n")[0]
    said = opening(path).partition("\n\n")[0].partition(" -- ")[2]
    return re.split(r"(?<=[.])\s", " ".join(said.split()))[0]


def never(text: str) -> str:
    """What a head says must not be: its sentence that begins with "Never", without that word."""
    for paragraph in text.split("\n\n"):
        found = re.search(r"(?:^|[.] )Never (.*?)[.](?: |$)", " ".join(paragraph.split()))
        if found:
            return found.group(1)
    return ""


class File(NamedTuple):
    """A row of the house: a Python file, or a C file and its header."""

    name: str
    runs_in: str
    says: str


class Wing(NamedTuple):
    """A folder: what it is for, what it never does, and its files from the ground up."""

    path: str
    purpose: str
    never: str
    files: list[File]


def _c_files(folder: pathlib.Path) -> Iterator[tuple[int, File]]:
    order = list(C_ROWS)
    for path in sorted(folder.glob("*.[ch]")):
        if path.suffix == ".c" and path.with_suffix(".h").exists():
            continue  # the header speaks for both
        module = c_module(path.relative_to(ROOT / "csrc").with_suffix("").as_posix())
        both = path.suffix == ".h" and path.with_suffix(".c").exists()
        name = f"{path.stem}.[ch]" if both else path.name
        yield order.index(module), File(name, C_ROWS[module], first_line(path))


def _python_files(folder: pathlib.Path) -> Iterator[tuple[int, File]]:
    order = list(PYTHON_ROWS)
    for path in sorted(folder.glob("*.py")):
        row, place = "", 0
        if path.is_relative_to(ROOT / "shmgpu"):
            row = path.relative_to(ROOT / "shmgpu").with_suffix("").as_posix()
            if path.stem == "__init__" and folder.name != "shmgpu":
                continue  # its first line is the wing's
            place = order.index(row)
        elif path.stem == "__init__":
            continue
        yield place, File(path.name, PYTHON_ROWS.get(row, ""), first_line(path))


def _head(folder: pathlib.Path) -> tuple[str, str]:
    name = folder.relative_to(ROOT).as_posix()
    if name in HEADS:
        return HEADS[name]
    text = docstring(folder / "__init__.py")
    return text.partition("\n")[0], never(text)


def wings() -> list[Wing]:
    """All of them, each tree from the ground up."""
    found = []
    for top in TOP:
        listed: list[tuple[int, Wing]] = []
        folders = {path.parent for path in (ROOT / top).rglob("*") if path.suffix in (".py", ".h")}
        for folder in sorted(folders):
            if top == "benchmarks" and not (folder / "__init__.py").exists():
                continue  # programs that are compiled and run, listed by their page
            files = sorted([*_c_files(folder)] if top == "csrc" else [*_python_files(folder)])
            if files:
                name = folder.relative_to(ROOT).as_posix()
                wing = Wing(name, *_head(folder), [file for _, file in files])
                listed.append((-1 if name == top else files[0][0], wing))
        found += [wing for _, wing in sorted(listed)]
    return found


def short_table() -> str:
    """The table of wings, as CONTRIBUTING.md shows it."""
    rows = ["| wing | what it is for | never | runs in |", "|---|---|---|---|"]
    for path, purpose, said, files in wings():
        refusals = said.partition(":")[0].replace(", never ", ", ")
        roles = {file.runs_in for file in files}
        runs_in = ", ".join(role for role in ROLES if role in roles)
        rows.append(f"| `{path}/` | {purpose.rstrip('.')} | {refusals} | {runs_in} |")
    return "\n".join(rows).replace("``", "`")


def whole_table() -> str:
    """The table with every file: what ``make house`` prints."""
    lines = []
    for wing in wings():
        lines += ["", f"{wing.path}/", *textwrap.wrap(plain(wing.purpose), 96, **_MARGIN)]
        lines += textwrap.wrap(f"Never {plain(wing.never)}.", 96, **_MARGIN)
        width = max(len(file.name) for file in wing.files)
        for name, runs_in, says in wing.files:
            lines.append(f"    {name:{width}}  {runs_in:6}  {plain(says)}")
    return "\n".join(lines[1:])


_MARGIN = {"initial_indent": "  ", "subsequent_indent": "  "}

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `make house | head`
    print(short_table() if sys.argv[1:] == ["--short"] else whole_table())
