"""The leak guard around every test, and the rule that skips GPU tests where there is no GPU.

Before and after each test the guard lists what a process can leave behind: descriptors, processes
(orphans of orphans too), Python threads, names under /dev/shm and mappings of memfds. What ends by
itself within five seconds is no leak. Torch and OpenMP keep native threads and libraries for good;
those are not counted, only what our own code makes. What other workers' tests make at the same
time is kept out of its sight by parallel.py.

Thousands of tests pay for the guard, most of which make nothing: of /proc it reads only what can
have changed since it last looked.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import gc
import importlib.util
import os
import pathlib
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zlib
from multiprocessing import resource_tracker

import amount
import parallel
import pytest
import warm

GRACE_S = 5.0
TESTED = "TESTED_PACKAGE"  # the folder that the package has to come from, as tests/under says
FRESH = "TESTS_FRESH"  # set to "yes" in a process that was started for one test
FAILED = pytest.StashKey[bool]()
PLACE = pytest.StashKey[pathlib.Path]()  # what all workers of a run share; its first process's
MACHINE = pytest.StashKey[parallel.Machine]()
SEED = pytest.StashKey[int]()

Left = dict[object, str]  # what tells one thing from another -> how it is shown


def open_descriptors() -> Left:
    _, tracker_descriptor = multiprocessing_tracker()
    found: Left = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the listing's own descriptor
        # A driver keeps its devices for good once it has been used.
        if int(number) != tracker_descriptor and not target.startswith(
            ("/dev/nvidia", "/proc/driver/")
        ):
            found["descriptor", number, target] = f"descriptor {number} -> {target}"
    return found


def multiprocessing_tracker() -> tuple[int | None, int | None]:
    """Pid and descriptor of multiprocessing's resource tracker, which stays once it was needed."""
    tracker = resource_tracker._resource_tracker
    return getattr(tracker, "_pid", None), getattr(tracker, "_fd", None)


def read_stat(pid: str) -> list[str]:
    """Fields of /proc/PID/stat from the third on; empty when it has gone."""
    try:
        text = pathlib.Path("/proc", pid, "stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def fork_mark(stat: list[str]) -> tuple[str, str]:
    """Equal in all processes forked from one image: address-space randomisation chose it."""
    return stat[25], stat[45]  # start_stack, arg_start


def last_pid() -> int:
    """The number that was given last, to a process or a thread, in our pid namespace."""
    with open("/proc/loadavg", "rb") as loadavg:
        return int(loadavg.read().split()[-1])


class Census:
    """Our children, and every process forked from this image, whoever is its parent now.

    Numbers are given in order, round and round. So one that was a stranger's when we last looked
    is his still, unless its turn has come since; and when none was given, nobody is new.
    """

    def __init__(self) -> None:
        self.found: Left = {}
        self.strangers: set[str] = set()
        self.last: int | None = None

    def take(self, again: bool) -> Left:
        """Who is there; who has ended may be among them, unless we look ``again``."""
        before, self.last = self.last, last_pid()
        if again or self.last != before:
            if before is not None:
                self.strangers = {
                    pid for pid in self.strangers if not turn_has_come(int(pid), before, self.last)
                }
            self.found = self._look()
        return self.found

    def _look(self) -> Left:
        me = str(os.getpid())
        mark = fork_mark(read_stat(me))
        tracker, _ = multiprocessing_tracker()
        pids = {pid for pid in os.listdir("/proc") if pid.isdigit()}
        self.strangers &= pids
        found: Left = {}
        for pid in pids - self.strangers - {me, str(tracker)}:
            stat = read_stat(pid)
            if not stat:
                continue
            if stat[1] != me and (mark == ("0", "0") or fork_mark(stat) != mark):
                self.strangers.add(pid)
                continue
            if stat[0] == "Z" and stat[1] != me:
                continue  # it has ended, and whoever adopted it takes its time to wait for it
            try:
                command = pathlib.Path("/proc", pid, "cmdline").read_bytes()
                name = pathlib.Path("/proc", pid, "comm").read_text().strip()
            except OSError:
                continue
            words = command.replace(b"\0", b" ").decode(errors="replace").strip()[:80]
            kind = "child" if stat[1] == me else "descendant"
            state = " (zombie: nobody waited for it)" if stat[0] == "Z" else ""
            found["process", pid, stat[19]] = f"{kind} {pid} [{name}] {words}{state}"
        return found


def turn_has_come(pid: int, before: int, last: int) -> bool:
    """Whether a number is one of those given after ``before``, up to ``last``, round and round."""
    return before < pid <= last if before <= last else pid > before or pid <= last


census = Census()


def threads() -> Left:
    return {("thread", id(one)): f"thread {one.name!r}" for one in threading.enumerate()}


def shared_memory_names() -> Left:
    found: Left = {}
    for entry in os.scandir("/dev/shm"):
        if entry.name.startswith("triton_"):  # of a peer's server, which may run beside tests
            continue
        try:
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found["name", entry.name] = f"/dev/shm/{entry.name}"
        except OSError:
            continue
    return found


class Mappings:
    """The memory files that are mapped here.

    The kernel takes over a millisecond to tell what is mapped beside torch, an eighth of what the
    tests' own process did. So it is asked when the size of it all is another than it was.
    """

    def __init__(self) -> None:
        self.found: Left = {}
        self.size = b""

    def take(self) -> Left:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            size = file.read().split()[0]
        if size != self.size:
            self.size, self.found = size, self._look()
        return self.found

    def _look(self) -> Left:
        found: Left = {}
        with open("/proc/self/maps", "rb", buffering=1 << 20) as file:
            maps = file.read()
        if b"/memfd:" in maps:
            for line in maps.decode(errors="replace").splitlines():
                if "/memfd:" in line:
                    inode = line.split()[4]  # not the address: a mapping may be split and merged
                    found["mapping", inode] = "mapping of " + line[line.index("/memfd:") :].strip()
        return found


mappings = Mappings()


def everything(again: bool = False) -> Left:
    if warm.current is not None:
        warm.current.wait_for_adopted()
    return {
        **open_descriptors(),
        **census.take(again),
        **threads(),
        **shared_memory_names(),
        **mappings.take(),
    }


# ---- the order, and the processes that tests run in ------------------------------------------


def pytest_addoption(parser):
    group = parser.getgroup("shmgpu")
    group.addoption(
        "--shuffle",
        nargs="?",
        const="",
        metavar="SEED",
        help="files in random order, and the tests of each; the seed is printed",
    )
    group.addoption(
        "--part",
        metavar="K/N",
        help="the K-th of N parts of the files, which --shuffle's seed deals out",
    )
    group.addoption(
        "--operations",
        metavar="PERCENT:SEED",
        help="of tests marked `operations` or `table` so many in a hundred, which the seed chooses",
    )

    group.addoption(
        "--cold",
        action="store_true",
        help="each program that a test starts is a fresh interpreter (tests/warm.py)",
    )


MEANT = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


class AtOnce:
    """Names what fails when it fails: a run that is stopped at its limit has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report):
        printer = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and printer is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.partition("\n")[0] if crash is not None else ""
            printer.write_line(f"\nFAILED in {report.when}: {report.nodeid} {why}"[:300])


def pytest_configure(config):
    """No test joins a broker that its user happens to run; and signals mean what tests say they
    mean, though a shell put them in the background, or nohup had a terminal's end ignored."""
    os.environ.setdefault("SHMGPU_AUTO", "never")
    if wanted := os.environ.get(TESTED):
        found = importlib.util.find_spec("shmgpu")
        if found is None or found.origin != os.path.join(wanted, "__init__.py"):
            pytest.exit(f"not what is to be tested: {found and found.origin}, wanted {wanted}", 2)
    if given := config.getoption("operations"):
        os.environ[amount.VARIABLE] = given.partition(":")[0]
        with contextlib.suppress(ImportError):
            import hypothesis

            hypothesis.settings.register_profile("part", max_examples=amount.examples(100))
            hypothesis.settings.load_profile("part")
    for number, meant in MEANT.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, meant)
    given = getattr(config, "workerinput", {})
    if not given:
        config.pluginmanager.register(AtOnce(config), "at-once")
    if (seed := given.get("seed", config.getoption("shuffle"))) is not None:
        config.stash[SEED] = int(seed) if str(seed) else secrets.randbelow(1 << 31)
    if given:
        if not parallel.have_private_shm():
            raise pytest.UsageError("A worker gets no /dev/shm of its own here: use -n 0.")
        place = pathlib.Path(given["place"], given["workerid"])
        place.mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(place)
        config.stash[MACHINE] = parallel.Machine(place.parent)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    return parallel.workers()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """In the process that starts the workers, for each."""
    stash = node.config.stash
    if PLACE not in stash:
        stash[PLACE] = pathlib.Path(tempfile.mkdtemp(prefix="tests-"))
    node.workerinput["place"] = str(stash[PLACE])
    if SEED in stash:
        node.workerinput["seed"] = stash[SEED]


def pytest_unconfigure(config):
    if warm.current is not None:
        warm.current.close()
    if (place := config.stash.get(PLACE, None)) is not None:
        shutil.rmtree(place, ignore_errors=True)


def pytest_report_header(config):
    if SEED in config.stash:
        return f"order: --shuffle={config.stash[SEED]}"
    return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """A test has the machine, with others or alone; its time limit begins when it has."""
    if MACHINE not in item.config.stash:
        return (yield)
    with item.config.stash[MACHINE].held(item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that is marked ``fresh`` runs here only when this process was started for it."""
    if pyfuncitem.get_closest_marker("fresh") is None or os.environ.get(FRESH) == "yes":
        return None
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-pno:xdist",
            "-pno:cacheprovider",
            pyfuncitem.nodeid,
        ],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, FRESH: "yes"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        pytest.fail(f"In a process of its own:\n{done.stdout}", pytrace=False)
    return True


def shuffle(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Files in random order, and the tests within each: what they share is made once a file."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    names = sorted(files)
    choose = random.Random(seed)
    choose.shuffle(names)
    for name in names:
        choose.shuffle(files[name])
    return [item for name in names for item in files[name]]


def part_of(items: list[pytest.Item], seed: int, part: str) -> list[pytest.Item]:
    """The files that a seed deals to part ``K/N``."""
    which, _, of = part.partition("/")
    names = sorted({item.nodeid.partition("::")[0] for item in items})
    random.Random(f"{seed}/parts").shuffle(names)
    mine = set(names[int(which) - 1 :: int(of)])
    return [item for item in items if item.nodeid.partition("::")[0] in mine]


frozen_modules = 0  # that were there when the collector was last told to look past them
MANY_MODULES = 50


def pytest_collection_finish(session):
    """What was imported stays: no collection of a test's or of a launch's looks at it again.

    By now the libraries that tests import have set the variables that programs inherit.
    """
    look_past_imports()
    if hasattr(session.config, "workerinput") and not session.config.getoption("cold"):
        warm.Warm()


def look_past_imports() -> None:
    global frozen_modules
    if len(sys.modules) > frozen_modules + MANY_MODULES:  # torch was imported: 0.2 s a collection
        gc.collect()
        gc.freeze()
        frozen_modules = len(sys.modules)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """In the tests' own process torch has one thread.

    An OpenMP pool, once it was used, is lost in a fork: from then on ``init()`` starts a fresh
    interpreter, and tests of what their fork inherits would depend on which ran before them.
    """
    warm.cold = any(item.get_closest_marker(name) for name in ("cold", "fresh"))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """What a file of tests left in the environment would have all later programs begin cold."""
    if warm.current is None or (nextitem is not None and nextitem.path == item.path):
        return
    if strays := warm.current.strays():
        warnings.warn(f"{item.path.name} left in the environment: {strays}", stacklevel=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


def open_what_opens_late() -> None:
    """A port makes its eventfd when first two threads wait at once, and keeps it.

    Where a file's tests share a broker, which of them is the first is chance.
    """
    if (ports := sys.modules.get("shmgpu.core.ports")) is not None:
        ports.port_event_fd()


@pytest.fixture(autouse=True)
def leak_guard(request):
    """Fails a test that leaves something behind; see ``leaks_ok``."""
    marker = request.node.get_closest_marker("leaks_ok")
    if marker is not None and not (marker.args or marker.kwargs.get("reason")):
        pytest.fail("leaks_ok needs a reason: @pytest.mark.leaks_ok('why').", pytrace=False)
    open_what_opens_late()
    before = everything()
    yield
    look_past_imports()
    # The traceback of a failed test holds on to its locals: only its own failure counts.
    if marker is not None or request.node.stash.get(FAILED, False):
        return
    deadline = time.monotonic() + GRACE_S
    look_again_s = 0.002
    is_late = False
    now = everything()
    while leaked := [shown for key, shown in now.items() if key not in before]:
        if is_late:
            lines = "\n  ".join(sorted(leaked))
            pytest.fail(f"The test left behind:\n  {lines}", pytrace=False)
        is_late = time.monotonic() > deadline  # the last look is one after it
        time.sleep(look_again_s)  # most of it is processes and threads that are ending just now
        if look_again_s > 0.01:
            gc.collect()  # a quarter of a second, beside torch
        look_again_s = min(2 * look_again_s, 0.1)
        now = everything(again=True)


@pytest.fixture(autouse=True)
def chosen_backend():
    """What a test chooses for its tensors is chosen for it alone, wherever the test stands."""
    current = sys.modules.get("shmgpu.tensors.current")
    before = "torch" if current is None else current._backend
    yield
    if (current := sys.modules.get("shmgpu.tensors.current")) is not None:
        current._backend = before


def cuda_devices() -> int:
    """Asks the driver, not torch: no test process shall hold a CUDA context for this."""
    if not (os.path.exists("/dev/nvidiactl") and ctypes.util.find_library("cuda")):
        return 0
    return sum(name[6:].isdigit() for name in os.listdir("/dev") if name.startswith("nvidia"))


def sampled(items: list[pytest.Item], given: str) -> list[pytest.Item]:
    """Of tests of operations and of tables so many in a hundred, "25:7" by seed 7; all others."""
    percent, _, seed = given.partition(":")
    return [
        item
        for item in items
        if not (item.get_closest_marker("operations") or item.get_closest_marker("table"))
        or not getattr(item, "callspec", None)
        or item.callspec.params.keys() <= {"engine", "backend"}
        or zlib.crc32(f"{seed} {item.nodeid}".encode()) % 100 < int(percent)
    ]


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector):
    """What is not chosen is forgotten at once.

    Every process that tests fork has the pages of all that is collected: 100 MB of them are 4 ms.
    """
    found = yield
    given = collector.config.getoption("operations")
    return sampled(found, given) if given and isinstance(found, list) else found


def keep(config: pytest.Config, items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    left = set(map(id, chosen))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
    items[:] = chosen


def pytest_collection_modifyitems(config, items):
    seed = config.stash.get(SEED, None)
    if part := config.getoption("part"):
        keep(config, items, part_of(items, seed or 0, part))
    if seed is not None:
        items[:] = shuffle(items, seed)
    if cuda_devices():
        return
    skip = pytest.mark.skip(reason="there is no CUDA device here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
