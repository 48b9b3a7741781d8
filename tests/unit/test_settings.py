"""Settings: where each comes from, and what is said of a wrong one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from executor.errors import BadRequestError
from executor.executor import AsyncExecutor
from executor.settings import SHOWN, load


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("TIMEOUT", "soon", "setting timeout: Input should be a valid number"),
        (
            "RUNTIME",
            "docker",
            "setting runtime: Input should be 'auto', 'container' or 'local'",
        ),
        ("LIMITS", "{memory: lots}", "setting limits.memory: cannot read 'lots' as a size"),
        ("POOL", "[1]", "setting pool: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, text: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        load(environ={f"EXECUTOR_{variable}": text})
    assert caught.value.message.startswith(message)
    assert caught.value.hint == f"It comes from the variable EXECUTOR_{variable}."


def test_a_wrong_argument_and_a_wrong_line_of_the_file_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("timeout: soon\n")
    environ = {"EXECUTOR_CONFIG": str(file)}
    with pytest.raises(BadRequestError) as caught:
        load(environ=environ)
    assert caught.value.hint == f"It comes from the file EXECUTOR_CONFIG={file}."
    with pytest.raises(BadRequestError) as caught:
        load({"timeout": -1}, environ)
    assert caught.value.hint == "It comes from an argument."
    file.write_text("runtimes: local\n")
    with pytest.raises(BadRequestError) as caught:
        load(environ=environ)
    assert f"EXECUTOR_CONFIG={file}. There are: runtime, image, " in caught.value.hint


def test_a_wrong_argument_over_settings_is_named() -> None:
    with pytest.raises(BadRequestError, match="'auto', 'container' or 'local' ") as caught:
        AsyncExecutor(settings=load(environ={}), runtime="kubernetes")
    assert caught.value.hint == "It comes from an argument."


def test_a_long_wrong_value_is_cut() -> None:
    with pytest.raises(BadRequestError) as caught:
        load(environ={"EXECUTOR_TIMEOUT": "x" * 100_000})
    assert len(caught.value.message) < SHOWN + 200


@pytest.mark.parametrize("text", ["!!bool maybe", "!!int ''", "!!timestamp noon", "[" * 400, "{a: ", "\0"])
def test_what_is_no_yaml_is_an_error_of_ours(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match=r"^EXECUTOR_LIMITS is not YAML: "):
        load(environ={"EXECUTOR_LIMITS": text})
    file = tmp_path / "settings.yaml"
    file.write_text(f"limits: {text}\n")
    with pytest.raises(BadRequestError, match=r"^EXECUTOR_CONFIG=.* is not YAML: "):
        load(environ={"EXECUTOR_CONFIG": str(file)})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("EXECUTOR_TIMEOT", "EXECUTOR_TIMEOUT"),
        ("EXECUTOR_RUNTIMES", "EXECUTOR_RUNTIME"),
        ("EXECUTOR_POOL_SIZE", "EXECUTOR_POOL"),
        ("EXECUTOR_DATADIR", "EXECUTOR_DATA_DIR"),
        ("EXECUTOR_TIM\x1bEOUT", "EXECUTOR_TIMEOUT"),
    ],
)
def test_a_variable_that_is_nearly_one_of_ours_is_warned_of(
    variable: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "executor.settings"):
        load(environ={variable: "5"})
    assert caplog.messages == [f"there is no setting {variable!r}; is {meant} meant?"]


def test_other_variables_are_nobodys_business(caplog: pytest.LogCaptureFixture) -> None:
    """A cluster sets such for a service that is called `executor`."""
    names = (
        "EXECUTOR_SERVICE_HOST",
        "EXECUTOR_PORT_80_TCP",
        "EXECUTOR_DEBUG",
        "EXECUTOR_MCP_TOKEN",
        "MY_TIMEOUT",
    )
    with caplog.at_level(logging.WARNING, "executor.settings"):
        load(environ=dict.fromkeys(names, "5"))
    assert caplog.messages == []


def test_addresses_in_the_variable_of_skills_stay_whole() -> None:
    found = load(environ={"EXECUTOR_SKILLS": "/one:git+https://example.org:8443/a.git::/two"}).skills
    assert found == ("/one", "git+https://example.org:8443/a.git", "/two")


def test_an_empty_list_of_host_inputs_opens_nothing() -> None:
    assert load(environ={"EXECUTOR_HOST_INPUTS": ""}).host_inputs == ()
