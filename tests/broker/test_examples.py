"""Every example runs as its page says, and prints what it is about."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

# What a reader sees, as patterns of whole lines in this order. Figures that vary stay open.
SHOWN = {
    "quickstart.py": [r"32 children were answered; the first: \[\d, \d, \d, \d\]"],
    "batching.py": [
        r" *one_by_one: 160 calls in 160 runs, .*",
        r" *greedy: 160 calls in (?!160)\d+ runs, .*",
        r" *patient: 160 calls in (?!160)\d+ runs, .*",
    ],
    "asyncio_child.py": [
        r"200 answers, each of 42",
        r"late: work: .*deadline.*",
        r"cancelled before it was started",
        r"helper 0 is free again",
    ],
    "pools.py": [r"of 800 rows, 1[0-9][0-9] went on to the large model"],
    "new_weights.py": [
        r"the actors saw [1-9] versions, and none after a later one",
        r"with version 8 their error is 0\.0\d+; the learner's was 0\.0\d+",
    ],
    "own_model.py": [r"400 calls, median [\d.]+ ms, p99 [\d.]+ ms, mean batch [\d.]+"],
    "growing_results.py": [
        r"below 0.001: 100 places, 800 bytes",
        r"below 0.5: 50000 places, 400000 bytes",
        r"below 1.5: 100000 places, 800000 bytes",
        r"below 0.25: 25000 places, 200000 bytes",
        r"4 calls, 4 runs",
        r"declared and in place: 800000 bytes",
    ],
    "inline_debugging.py": [
        r"local: \[3. 3.\]",
        r"inline: ValueError\('one axis is expected, not 2'\)",
        r"helper process: None",
    ],
    "tensors_basic.py": [
        r"a @ b = \[\[19.0, 22.0\], \[43.0, 50.0\]\]",
        r"gradient of a: \[\[11.0, 15.0\], \[11.0, 15.0\]\]",
        r"relu: \[0.0, 0.0, 0.0, 0.5, 1.0\] sum of squares: 2.5",
        r"after 50 steps the loss is 0.0000\d\d",
        r"refused: matmul: \(2, 3\) @ \(2, 3\) does not fit: .*",
    ],
    "tensor_tutorial.py": [
        *(
            "",
            r"1\. .*",
            r" +waiting: mul, add, sum",
            r" +the shape is known at once: \(\) float32",
        ),
        *("", r"2\. .*", r" +b = 15.0 ; waiting now: 0"),
        *("", r"3\. .*", r" +add: the shapes \(2, 3\) and \(4,\) .*"),
        *("", r"4\. .*", r" +x = \[0.0, 0.0, 0.0\]", r" +and what you look at is read only: True"),
        *("", r"5\. .*", r" +x\^3 at 3: slope 27.0 and bend 18.0"),
        *("", r"6\. .*", r" +step 100: loss 0\.\d+", r" +step 200: loss 0\.\d+"),
        *(r" +step 300: loss 0\.0[012]\d+", r" +\d+ operations were checked: .*"),
        *("", r"7\. .*", r" +the same answer: True, sin\(0.75\) = 0.68, learned 0\.[678]\d"),
    ],
    "train_mlp.py": [
        *(r"epoch [123]: loss 0\.\d+" for _ in range(3)),
        r"lost: helper 0 has died",
        *(r"epoch [456]: loss 0\.\d+" for _ in range(3)),
        r"right: (8[5-9]|9\d)\.\d % of 2000 new points",
    ],
    "digits_network.py": [r"accuracy on pictures it has not seen: 9[89]\.\d\d%"],
    "mesh_data_parallel.py": [
        r"meetings in a step: 4.0 all_reduce",
        r"the losses are one helper's: True",
        r"accuracy on pictures it has not seen: 9\d\.\d\d%",
    ],
    "mesh_tensor_parallel.py": [
        r"up.weight \(512, 16\) lies \(Shard\(0\),\)",
        r"up.bias \(512,\) lies \(Shard\(0\),\)",
        r"down.weight \(1, 512\) lies \(Shard\(1\),\)",
        r"down.bias \(1,\) lies \(Replicate\(\),\)",
        r"7 operations on a mesh of 2 \(tensor\): 1 collective, 1,024 bytes .*",
        *(r" +%\d+ = (redistribute|linear|relu)\(.*" for _ in range(7)),
        r" +#0 all_reduce along tensor of \(256, 1\), 1,024 bytes",
        r"forward: \{'all_reduce': 1\}, 1,024 bytes each",
        r"the losses are one helper's: True",
        r"from 0\.\d+ to 0\.[01]\d+",
    ],
    "netcl_replicas.py": [
        r"all_reduce: \[3.0, 3.0\] and \[3.0, 3.0\]",
        r"mean of gradients of 2 rows and of 1: \[6.0, 6.0\]",
        r"meetings in 144 steps: \{'all_reduce': 288\}",
        r"loss from 2\.\d+ to 0\.[12]\d+",
        r"accuracy on pictures it has not seen: 9\d\.\d\d%",
    ],
    "tinygrad_digits.py": [
        r"the weights lie on helper:0, helper:1",
        r"loss from 2\.\d+ to 0\.[01]\d+",
        r"accuracy on pictures it has not seen: 9\d\.\d\d%",
    ],
    "actor_learner.py": [
        *(r" *\d+ \|[ *]{60}" for _ in range(10)),
        *(r"   0 \+-{60}", r" +0 +\d+,\d+"),
        r"\d+ times new weights, \d+,\d+ moments: \d+ of 500",
    ],
    "tree_search.py": [
        *(r" *\d+ \|[ *]{60}" for _ in range(10)),
        *(r"   0 \+-{60}", r" +0 +\d+,?\d*"),
        r"[\d,]+ games, [\d,]+ calls in batches of \d+\.\d: "
        r"\d+ of 100 games won at first, \d+ in the end",
    ],
    "tape_demo.py": [
        *("Nothing has been computed yet.", "", "Input tape", r" +message .*"),
        *(r" +waits .*" for _ in range(6)),
        *("", r"loss 2.5: forward, backward and step were one message", "", "Output queue"),
        *(r" +message .*", r" +1 +0 +LOAD .*"),
        *(r" +1 +0 +RUN .*" for _ in range(16)),
        *(r" +1 +0 +(KEEP|READ) .*" for _ in range(3)),
        *("", "Handles", r" +tensor .*", r" +#\d+ +0 .*", r" +#\d+ +0 .*"),
        *("", r"16 operations, each with its inputs at hand"),
    ],
    "multi_helper_tape.py": [
        *(r"#\d+ \(\d+, \d+\) lies with helper [01]" for _ in range(2)),
        *(r"the product's shape is \(300, 50\)", "", "Output queue", r" +message .*"),
        *(r" +\d +[01] +(RUN|KEEP|READ) .*" for _ in range(8)),
        r" +3 +([01]) +MOVE .* helper [01] -> helper \1, 40,000 bytes",
        *(r" +4 +[01] +(USE|LOAD|RUN|READ) .*" for _ in range(4)),
        *("", r"#\d+ was moved from helper [01] to [01]; 5 operations had their inputs at hand"),
    ],
    "scheduler_debug.py": [
        *("Helpers", r" +helper +state .*", r" +0 +ready .*", r" +1 +ready .*"),
        r"\d+ ticks of helpers: [1-9]\d* busy, \d+ idle",
        r"[1-9]\d+ operations of 4 children had their inputs at hand",
        r"4 files for shmgpu trace",
    ],
}


# These need a broker, or a server, beside them: tests/attach/test_examples.py runs them.
ATTACHED = {
    *("multi_user.py", "gunicorn_server.py", "uvicorn_app.py", "data_loader.py"),
    *("fastapi_app.py", "tensors_multi_user.py"),
}

# Model files of the server's, and what they use: tests/serve/test_examples.py serves them.
SERVED = {"serve_digits.py", "serve_embeddings.py", "embeddings_text.py"}


def run(*command: str) -> str:
    environment = {name: text for name, text in os.environ.items() if "SHMGPU_" not in name}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWN) | ATTACHED | SERVED


# The others cost a start of Python and of torch each; `make doorstep` runs them all, as installed.
AT_ONCE = {"quickstart.py", "tensors_basic.py"}


@pytest.mark.parametrize(
    "name",
    [one if one in AT_ONCE else pytest.param(one, marks=pytest.mark.slow) for one in SHOWN],
)
def test_an_example_shows_what_it_is_about(name):
    lines = run(sys.executable, str(EXAMPLES / name)).splitlines()
    assert len(lines) == len(SHOWN[name]), lines
    for line, pattern in zip(lines, SHOWN[name], strict=True):
        assert re.fullmatch(pattern, line), f"{line!r} is not {pattern!r}"


@pytest.mark.slow  # an export and a load more, of what own_model.py does above
def test_own_model_serves_a_file_that_its_user_brings(tmp_path):
    model = tmp_path / "mine.pt2"
    program = str(EXAMPLES / "own_model.py")
    run(sys.executable, program, str(model), "--make")
    shown = run(
        sys.executable, program, str(model), "--children", "3", "--helpers", "1", "--calls", "4"
    )
    assert shown.startswith("12 calls, median ")


def test_the_readme_shows_the_quickstart():
    quickstart = (EXAMPLES / "quickstart.py").read_text(encoding="utf-8")
    assert quickstart in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_c_example_runs_on_the_c_core_alone(tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler here")
    core = ROOT / "csrc"
    extensions = core / "python"  # these need Python's headers, and are no part of the C core
    sources = sorted(str(path) for path in core.rglob("*.c") if extensions not in path.parents)
    program = tmp_path / "messages"
    run(
        compiler, "-std=c11", "-D_GNU_SOURCE", "-pthread", f"-I{ROOT / 'csrc'}",
        str(EXAMPLES / "messages.c"), *sources, "-o", str(program),
    )  # fmt: skip
    lines = run(str(program)).splitlines()
    assert len(lines) == 12
    pattern = r"helper [01]: child ([0-3]), message ([0-2]): \[.*\] adds up to (\d+)"
    found = sorted(tuple(map(int, re.fullmatch(pattern, line).groups())) for line in lines)
    # 8 numbers, the first of which is 100 * child + 10 * message.
    assert found == [
        (child, turn, 8 * (100 * child + 10 * turn) + 28) for child in range(4) for turn in range(3)
    ]
