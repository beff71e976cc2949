"""The description of the HTTP front end holds for requests that schemathesis makes up."""

from __future__ import annotations

import functools
import importlib.util
import re

import amount
import hypothesis
import pytest
from serve import servers

if importlib.util.find_spec("schemathesis") is None:  # imported when it is needed: it is large
    pytest.skip("schemathesis is not installed", allow_module_level=True)

from shmgpu.serve.frontend import openapi, routes

CHECKED = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")


def described():
    """The description, with names that lead somewhere, and one that does not."""
    found = openapi.describe()
    for path in found["paths"].values():
        for operation in path.values():
            for one in operation["parameters"]:
                names = ["1", "7"] if one["name"] == "version" else ["scale", "upper", "nobody"]
                one["schema"]["enum"] = names
    return found


DESCRIBED = described()
OPERATIONS = [
    f"{method.upper()} {path}" for path, ways in DESCRIBED["paths"].items() for method in ways
]


@functools.cache
def operations():
    """By their labels."""
    import schemathesis

    found = schemathesis.openapi.from_dict(DESCRIBED).get_all_operations()
    return {one.ok().label: one.ok() for one in found}


@functools.cache
def checks():
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    return [CHECKS.get_one(name) for name in CHECKED]


def test_every_operation_is_tried():
    assert operations().keys() == set(OPERATIONS)


@pytest.fixture(scope="module")
def allowing():
    with servers.serving(
        servers.MODELS / "simple.py", allow_settings=True, allow_client_shm=True
    ) as server:
        yield server


def test_every_route_is_described():
    ways = [
        (method.upper().encode(), re.sub(r"{\w+}", "x", path).encode())
        for path, operations in DESCRIBED["paths"].items()
        for method in operations
    ]
    for method, pattern, answer in routes.ROUTES:
        assert any(m == method and pattern.fullmatch(path) for m, path in ways), answer


@pytest.mark.table
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_one_that_is_described(label, allowing):
    from schemathesis import GenerationMode

    operation = operations()[label]
    cases = hypothesis.strategies.one_of(
        [
            operation.as_strategy(generation_mode=mode)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
            if operation.body or mode.is_positive
        ]
    )

    @hypothesis.given(case=cases)
    @hypothesis.settings(
        max_examples=amount.examples(40) if operation.body else 6,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def ask(case):
        response = case.call(base_url=f"http://{allowing.address}")
        case.validate_response(response, checks=checks())

    ask()
    assert allowing.is_ready()


@pytest.mark.parametrize(
    ("path", "statuses"),
    [
        ("/v2/models/{name}/infer", {400, 401, 404, 405, 408, 413, 415, 431, 503}),
        ("/v2/health/ready", {400, 401, 404, 405, 408, 413, 431}),
        ("/v2/systemsharedmemory/region/{name}/register", {403}),
        ("/v2/systemsharedmemory/region/{name}/unregister", {403}),
        ("/v2/cudasharedmemory/region/{name}/register", {501}),
        ("/v2/models/{name}/generate_stream", {503}),
        ("/v2/repository/models/{name}/load", {503}),
        ("/v2/repository/models/{name}/unload", {503}),
    ],
)
def test_refusals_that_other_tests_provoke_are_described(path, statuses):
    (operation,) = [one for method, one in DESCRIBED["paths"][path].items() if method != "head"]
    described = {int(status) for status in operation["responses"]}
    assert statuses <= described <= {200, 400, 401, 404, 405, 408, 413, 431, *statuses}


@pytest.mark.table
@pytest.mark.parametrize("path", DESCRIBED["paths"])
def test_a_method_that_a_path_does_not_have_is_405_and_is_told_those_that_it_has(path, allowing):
    filled = path.replace("{name}", "scale").replace("{version}", "1")
    has = {method.upper() for method in DESCRIBED["paths"][path]}
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"} - has:
        status, headers, _ = allowing.ask(method, filled)
        assert status == 405
        assert set(headers["allow"].split(", ")) - {"HEAD"} == has
