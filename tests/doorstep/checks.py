"""The checks of the doorstep: what a user does first, with the settings of one who sets nothing.

Each is a name and a function of the place; what is documented is taken from the pages themselves.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from broker.test_examples import SHOWN
from doorstep.place import ROOT, Failed, Home, Place, expect, home
from unit.test_pages import blocks_in, program_of, runs_in_the_next

Check = Callable[[Place], None]

BOTH = ("editable", "wheel")
LIGHT = {
    "actor_learner.py": ["--actors", "4", "--most-moments", "16000"],
    "tree_search.py": ["--players", "2", "--most-games", "10"],
    "own_model.py": ["--children", "2", "--helpers", "1", "--calls", "4"],
}
HEAVY = {"digits_network.py"}  # it trains for as long as it takes; the slow tests run it
OF_THE_INSTALLED = ("quickstart.py", "tensors_basic.py", "train_mlp.py")
INTERRUPTED = ("quickstart.py", "train_mlp.py", "asyncio_child.py", "tensors_basic.py", "pools.py")

# What a newcomer reads first, and runs as it stands; test_pages.py runs the other pages' programs.
PAGES = {
    "README.md",
    "examples/own-model.md",
    "shmgpu/ERRORS.md",
    *(f"shmgpu/{wing}/README.md" for wing in ("broker", "child", "helper", "tensors", "watch")),
}

TWO_LINES = "import shmgpu as gt\nprint(gt.randn(3, 3).data)\n"
LAUNCH = "import shmgpu\nprint(shmgpu.launch(lambda rank: rank, children=2))\n"

OWN_LOAD = """
import shmgpu

def load(helper):
    return {value}

@shmgpu.function(arrays="numpy")
def answer(helper):
    return helper.session

if __name__ == "__main__":
    print(answer())
"""

TRAINING = """
import numpy as np
import torch
import shmgpu
from shmgpu import nn

if __name__ == "__main__":
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimiser = shmgpu.SGD(model.parameters(), lr=0.01)
    x = np.random.default_rng(0).standard_normal((32, 64), dtype="float32")
    for _ in range(200):
        loss = model(shmgpu.tensor(x)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        value = loss.item()
    print(value < 1)
"""

FORKSERVER = """
import multiprocessing
import shmgpu

def double(queue, number):
    queue.put((shmgpu.ones(2) * number).data.tolist())

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    processes = [context.Process(target=double, args=(queue, n)) for n in (2, 3)]
    for one in processes:
        one.start()
    print(sorted(queue.get() for _ in processes))
    for one in processes:
        one.join()
"""

NOTEBOOK = """
import sys
from jupyter_client import KernelManager

manager = KernelManager()
manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
manager.start_kernel()
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)

def hear(message):
    kind, content = message["msg_type"], message["content"]
    if kind == "stream" and content["name"] == "stdout":
        print(content["text"], end="")
    if kind == "stream" and "load was defined anew" in content["text"]:
        print("warned")
    if kind == "execute_result" and "<table>" in content["data"].get("text/html", ""):
        print("tables")
    if kind == "error":
        print(*content["traceback"], sep="\\n")

for cell in (
    "import numpy as np\\nimport shmgpu as gt",
    "def load(helper):\\n    return 2",
    "@gt.function(arrays='numpy')\\ndef f(helper, x):\\n    return x * helper.session\\n",
    "print(f(np.ones(2)).tolist())",
    "def load(helper):\\n    return 3",
    "print(f(np.ones(2)).tolist())",
    "gt.disconnect()\\n_ = gt.ensure()",
    "print(f(np.ones(2)).tolist())",
    "@gt.function(arrays='numpy')\\ndef soon(helper):\\n    return 5 * helper.session",
    "print(soon())",
    "x = gt.ones(3)\\nprint((x + 1).data.tolist())",
    "try:\\n    gt.launch(print, children=1)\\n"
    "except gt.LaunchError as error:\\n    print('init()' in str(error))",
    "gt.disconnect()\\nsession = gt.init(helpers=1, session=load)\\nprint(session)",
    "@gt.function(arrays='numpy')\\ndef late(helper, x):\\n    return 7 * x * helper.session",
    "print(late(np.ones(2)).tolist())",
    "gt.stats()",
    "gt.shutdown()\\nprint(session)",
):
    client.execute_interactive(cell, output_hook=hear, timeout=60)
client.stop_channels()
manager.shutdown_kernel()
"""


def all_checks(seed: int) -> dict[str, Check]:
    """Every check by its name."""
    made: dict[str, Check] = {
        "make test in a folder called shmgpu": make_test,
        "make demo": lambda place: expect(place.make("demo")),
        "import in a checkout after pip install": import_in_a_checkout,
        "import beside a checkout": import_beside_a_checkout,
        "programs of a notebook": notebook,
        "processes of a forkserver": forkserver,
    }
    for environment in BOTH:
        for block in blocks_in("python", "py"):
            if block.page in PAGES and not block.no_run and not runs_in_the_next(block):
                _add(made, f"{block}", environment, run_text, text=program_of(block))
        for name in SHOWN if environment == "editable" else OF_THE_INSTALLED:
            if name not in HEAVY:
                _add(made, f"examples/{name}", environment, run_example, name=name)
        _add(made, "two lines of tensors", environment, run_text, text=TWO_LINES)
        _add(made, "an edit between two runs", environment, edited_between_runs)
        _add(made, "two programs at once", environment, two_at_once)
    for name in ("empty environment", "no HOME", "closed stdin", "closed stdout", "cwd is /proc"):
        _add(made, name, "wheel", in_odd_surroundings, name=name)
    _add(made, "beside two busy processes", "wheel", beside_busy_processes)
    chosen = random.Random(seed)
    for name in INTERRUPTED:
        for _ in range(2):
            moment = round(chosen.random(), 2)
            title = f"Ctrl-C at {moment} of {name}"
            _add(made, title, "wheel", interrupted, name=name, moment=moment)
    title = "Ctrl-C while tensors train"
    _add(made, title, "wheel", interrupted, name="", moment=round(chosen.random(), 2))
    for python in other_pythons():
        made[f"quickstart, {python}"] = functools.partial(under_another_python, python=python)
    return made


def _add(
    made: dict[str, Check],
    title: str,
    environment: str,
    body: Callable[..., None],
    **more: object,
) -> None:
    made[f"{title} ({environment})"] = functools.partial(body, environment=environment, **more)


@contextlib.contextmanager
def of(place: Place, environment: str) -> Iterator[Home]:
    with home(place.pythons[environment]) as made:
        yield made


# ---- programs --------------------------------------------------------------------------------


def run_text(place: Place, environment: str, text: str) -> None:
    with of(place, environment) as one:
        ended = one.run(one.write("program.py", text))
        ended.well()
        expect("Traceback" not in ended.err, ended.err)


def run_example(place: Place, environment: str, name: str) -> None:
    with of(place, environment) as one:
        shown = one.run(str(place.source / "examples" / name), *LIGHT.get(name, ())).well()
        expect(shown.strip(), "it printed nothing")


def edited_between_runs(place: Place, environment: str) -> None:
    """What a helper runs is what the file says, also within a minute of the last time."""
    with of(place, environment) as one:
        for value in (1, 2):
            shown = one.run(one.write("mine.py", OWN_LOAD.format(value=value))).well()
            expect(shown == f"{value}\n", f"it says {value}, and the answer is {shown!r}")


def two_at_once(place: Place, environment: str) -> None:
    with of(place, environment) as one:
        texts = [OWN_LOAD.format(value=1), OWN_LOAD.format(value=2), TWO_LINES]
        names = [one.write(f"program{n}.py", text) for n, text in enumerate(texts)]
        running = [one.start(name) for name in names]
        ended = [one.end(process) for process in running]
        expect([one.well() for one in ended[:2]] == ["1\n", "2\n"], ended)
        ended[2].well()


def forkserver(place: Place) -> None:
    with of(place, "wheel") as one:
        shown = one.run(one.write("program.py", FORKSERVER)).well()
        expect(shown == "[[2.0, 2.0], [3.0, 3.0]]\n", shown)


def notebook(place: Place) -> None:
    with of(place, "editable") as one:
        shown = one.run("-c", NOTEBOOK).well()
        wanted = ["[2.0, 2.0]", "warned", "[2.0, 2.0]", "[3.0, 3.0]", "15", "[2.0, 2.0, 2.0]"]
        wanted += [
            "True",
            "<shmgpu session, running: 1 of 1 helper ready>",
            "[21.0, 21.0]",
            "tables",
        ]
        wanted += ["<shmgpu session, shut down>"]
        lines = shown.splitlines()
        expect(sorted(lines) == sorted(wanted) and lines[3:] == wanted[3:], shown)


# ---- where and how they are run ----------------------------------------------------------------


def make_test(place: Place) -> None:
    """The tests that look at paths, as the user's first command would run them."""
    place.make("test", "T=tests/broker/test_launch.py tests/unit/test_packaging.py -m 'not slow'")


def import_in_a_checkout(place: Place) -> None:
    code = "import shmgpu; print(shmgpu.__file__); print(shmgpu.zeros(1).data)"
    with of(place, "wheel") as one:
        shown = one.run("-c", code, cwd=str(place.source)).well()
        expect("site-packages" in shown, shown)


def import_beside_a_checkout(place: Place) -> None:
    for environment in BOTH:
        with of(place, environment) as one:
            one.run("-c", TWO_LINES, cwd=str(place.source.parent)).well()


SURROUNDINGS: dict[str, Callable[[Home], dict[str, object]]] = {
    "empty environment": lambda one: {"env": {}},
    "no HOME": lambda one: {"env": {k: v for k, v in one.env.items() if k != "HOME"}},
    "closed stdin": lambda one: {"before": ["/bin/sh", "-c", 'exec "$0" "$@" <&-']},
    "closed stdout": lambda one: {"before": ["/bin/sh", "-c", 'exec "$0" "$@" >&-']},
    "cwd is /proc": lambda one: {"cwd": "/proc"},
}


def in_odd_surroundings(place: Place, environment: str, name: str) -> None:
    with of(place, environment) as one:
        texts = [LAUNCH] if name == "empty environment" else [LAUNCH, TWO_LINES]
        for text in texts:
            path = str(one.cwd / one.write("program.py", text))
            ended = one.run(path, **SURROUNDINGS[name](one))
            ended.well()
            expect(ended.out or name == "closed stdout", "it printed nothing")


def beside_busy_processes(place: Place, environment: str) -> None:
    busy = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    try:
        with of(place, environment) as one:
            expect(one.run(one.write("training.py", TRAINING)).well() == "True\n", "wrong")
        run_example(place, environment, "quickstart.py")
    finally:
        for other in others:
            other.kill()
            other.wait()


# ---- Ctrl-C --------------------------------------------------------------------------------

ENDS_WITHIN_S = 20.0
# What an interrupt reads as. The second is CPython's PyCapsule_Import, with which C extensions
# (NumPy's, say) import: it puts its own ImportError in the place of whatever was raised.
INTERRUPTS = ("KeyboardInterrupt", "PyCapsule_Import could not import module")


@functools.cache
def takes_s(python: pathlib.Path, text: str) -> float:
    """How long a program runs when nobody interrupts it."""
    with home(python) as one:
        began = time.monotonic()
        one.run(one.write("program.py", text)).well()
        return time.monotonic() - began


def interrupted(place: Place, environment: str, name: str, moment: float) -> None:
    """It ends soon, says that it was interrupted, and leaves nothing."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8") if name else TRAINING
    after_s = moment * takes_s(place.pythons[environment], text)
    with of(place, environment) as one:
        process = one.start(one.write("program.py", text))
        time.sleep(after_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        ended = one.end(process, ENDS_WITHIN_S)
        by_signal = ended.status in (130, -signal.SIGINT)
        by_exception = ended.status != 0 and any(words in ended.err for words in INTERRUPTS)
        if not (by_signal or by_exception or ended.status == 0):
            raise Failed(f"after {after_s:.2f} s: status {ended.status}\n{ended.out}{ended.err}")


# ---- other Pythons -------------------------------------------------------------------------


def other_pythons() -> list[str]:
    """Each CPython of those we say we run on that is here, but for the one that runs this."""
    found = []
    for minor in range(10, 15):
        name = f"python3.{minor}"
        if sys.version_info[:2] == (3, minor) or shutil.which(name) is None:
            continue
        works = subprocess.run([name, "-c", "import venv, ensurepip"], capture_output=True)
        if works.returncode == 0:
            found.append(name)
    return found


def under_another_python(place: Place, python: str) -> None:
    """The installed package with NumPy alone: torch has no wheel for each of them."""
    folder = place.base / python
    if not (folder / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own = str(folder / "bin" / "python")
    done = subprocess.run(
        [own, "-m", "pip", "install", "-q", "--force-reinstall", str(place.source)],
        capture_output=True,
        text=True,
    )
    expect(done.returncode == 0, done.stderr)
    with home(folder / "bin" / "python") as one:
        one.run(str(ROOT / "tests" / "abi.py")).well()
