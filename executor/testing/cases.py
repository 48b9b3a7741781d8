"""Reads case files, `<skill>/tests/*.yaml`; what can stand in one is in `form.py`.

Reading checks everything that can be checked without a sandbox, so that a mistake in a file is an error with
its line and never a case that passes by accident. Nothing is run here.

Fixtures are paths beside the case file. They have to lie in the folder that holds the skill (so that skills
can share data), wherever their links lead: a case file from a stranger reads nothing else of the host.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from executor.bridge.scripts import check_path
from executor.errors import BadPathError, BadRequestError, GrantError
from executor.models import Limits
from executor.skills.document import slug
from executor.testing.fakes import FakeTools
from executor.testing.form import Case, FileExpectation, StdinFile, TextExpectation
from executor.workspace import globs, layout

MAX_BYTES = 1 << 20  # of a case file
MAX_NODES = 100_000  # of YAML, aliases counted each time they are used
MAX_FIXTURE = 64 << 20

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")


@dataclass(frozen=True)
class Instance:
    """One case with its parameters filled in, and where it comes from."""

    skill: Path
    """The skill's folder, links resolved."""
    slug: str
    file: Path
    line: int
    name: str
    case: Case

    @property
    def id(self) -> str:
        """`sales-report::totals by region`."""
        return f"{self.slug}::{self.name}"

    def fixture(self, relative: str) -> Path:
        """The host path of a fixture. BadPathError when it leaves the folder that holds the skill."""
        return _fixture(self.file, self.skill, relative)

    def fixtures(self) -> Iterator[Path]:
        """Every file or folder that the case reads."""
        for relative in _named_fixtures(self.case):
            yield self.fixture(relative)
        for relative, _where in _goldens(self.case):
            yield self.golden(relative)

    def golden(self, relative: str) -> Path:
        """The host path of a golden file, which may not exist yet. It has to lie in the skill itself."""
        return _golden(self.file, self.skill, relative)


def discover(skill: Path) -> list[Instance]:
    """All cases of a skill, in the order of files and lines. BadRequestError with file and line."""
    skill = Path(os.path.realpath(skill))
    folder = skill / "tests"
    found: list[Instance] = []
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            if file.suffix in (".yaml", ".yml") and file.is_file():
                found += load(file, skill)
    seen: dict[str, Instance] = {}
    for instance in found:
        other = seen.setdefault(instance.name, instance)
        if other is not instance:
            raise _error(
                instance.file, instance.line, f"the case {instance.name!r} is in {other.file.name} too"
            )
    return found


def load(file: Path, skill: Path) -> list[Instance]:
    """The cases of one file. BadRequestError with file and line for whatever is wrong with it."""
    data, lines = _read(file)
    if not isinstance(data, dict) or "cases" not in data:
        raise _error(
            file, 1, "there is no list `cases`", "Put files that are no case files into a folder below."
        )
    if unknown := sorted(set(map(str, data)) - {"cases"}):
        raise _error(file, lines.get((unknown[0],), 1), f"{unknown[0]!r} is not known here; only `cases` is")
    if not isinstance(data["cases"], list) or not data["cases"]:
        raise _error(file, lines.get(("cases",), 1), "`cases` is not a list of cases")
    found: list[Instance] = []
    for index, raw in enumerate(data["cases"]):
        line = lines.get(("cases", index), 1)
        for values in _parameters(file, raw, line):
            filled = _fill(raw, values, file, line)
            if values:  # the whole list in each would be checked as often as it is long
                filled["parametrize"] = [values]
            try:
                case = Case.model_validate(filled)
            except ValidationError as error:
                raise _invalid(file, error, lines, index) from None
            _check(file, skill, case, lines, index)
            found.append(Instance(skill, slug(skill.name), file, line, _name(case.name, raw, values), case))
    return found


def _error(file: Path, line: int, message: str, hint: str = "") -> BadRequestError:
    return BadRequestError(f"{shown(file)}:{line}: {message}", hint=hint)


def shown(file: Path) -> str:
    """A file's path for a person: relative where it lies below the working folder."""
    try:
        relative = os.path.relpath(file)
    except FileNotFoundError:  # the working folder has been deleted
        return str(file)
    return str(file) if relative.startswith("..") else relative


# --- YAML with lines ----------------------------------------------------------------------------------------

_Path = tuple[str | int, ...]


def _read(file: Path) -> tuple[Any, dict[_Path, int]]:
    """The data of a file, and the line on which each of its parts begins."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise _error(file, 1, f"cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise _error(file, 1, f"is larger than {MAX_BYTES:,} bytes")
    try:
        loader = yaml.SafeLoader(raw)
        node = loader.get_single_node()
        lines: dict[_Path, int] = {}
        if node is not None:
            _mark(node, (), lines, [0])
        return loader.construct_document(node) if node is not None else None, lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _error(file, line, f"is not YAML: {error.problem}") from None
    except Exception as error:  # a wrong `!!int` or `!!bool` makes PyYAML raise whatever comes of it
        first = str(error).partition("\n")[0]
        raise _error(file, 1, f"is not YAML: {first or type(error).__name__}") from None


def _mark(node: yaml.Node, path: _Path, lines: dict[_Path, int], count: list[int]) -> None:
    count[0] += 1
    if count[0] > MAX_NODES:
        raise ValueError(f"it holds more than {MAX_NODES:,} nodes")
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name in names and name != "<<":
                raise yaml.MarkedYAMLError(problem=f"{name!r} is repeated", problem_mark=key.start_mark)
            names.add(name)
            lines[(*path, name)] = key.start_mark.line + 1
            _mark(value, (*path, name), lines, count)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _mark(value, (*path, index), lines, count)


def _invalid(file: Path, error: ValidationError, lines: Mapping[_Path, int], index: int) -> BadRequestError:
    """The first fault, at the deepest place of the file that it names."""
    first = max(error.errors(), key=lambda item: len(_place(item["loc"], lines, index)))
    place = _place(first["loc"], lines, index)
    named = ".".join(str(part) for part in place[2:])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message, named = f"{first['loc'][-1]!r} is not known here", ".".join(map(str, place[2:-1]))
    return _error(file, lines.get(place, 1), f"{named}: {message}" if named else message)


def _place(location: tuple[str | int, ...], lines: Mapping[_Path, int], index: int) -> _Path:
    """Pydantic's location names the members of unions too, which are nowhere in the file."""
    place: _Path = ("cases", index)
    for part in location:
        if (*place, part) in lines:
            place = (*place, part)
    return place


# --- parameters ---------------------------------------------------------------------------------------------


def _parameters(file: Path, raw: Any, line: int) -> list[dict[str, Any]]:
    if not isinstance(raw, dict):
        raise _error(file, line, "a case is a map with `name` and `run`")
    given = raw.get("parametrize")
    if given is None:
        return [{}]
    if not isinstance(given, list) or not given or not all(isinstance(item, dict) and item for item in given):
        raise _error(file, line, "`parametrize` is a list of maps, none of them empty")
    for item in given:
        for key, value in item.items():
            if not isinstance(key, str) or not _PLACEHOLDER.fullmatch("{{" + key + "}}"):
                raise _error(file, line, f"{key!r} cannot be a parameter: use letters, digits and _")
            if not isinstance(value, str | int | float | bool):
                raise _error(
                    file, line, f"the parameter {key} is a {type(value).__name__}; use text or a number"
                )
    return given


def _fill(raw: Any, values: Mapping[str, Any], file: Path, line: int) -> Any:
    """The case with its parameters. A text that is one placeholder becomes the value itself."""
    if not values:
        return raw
    if isinstance(raw, str):
        whole = _PLACEHOLDER.fullmatch(raw)
        for name in _PLACEHOLDER.findall(raw):
            if name not in values:
                raise _error(file, line, f"{{{{{name}}}}} has no value", f"There are {', '.join(values)}.")
        if whole:
            return values[whole[1]]
        return _PLACEHOLDER.sub(lambda match: _as_text(values[match[1]]), raw)
    if isinstance(raw, list):
        return [_fill(item, values, file, line) for item in raw]
    if isinstance(raw, dict):
        return {
            _fill(key, values, file, line): item if key == "parametrize" else _fill(item, values, file, line)
            for key, item in raw.items()
        }
    return raw


def _as_text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _name(name: str, raw: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    if not values or _PLACEHOLDER.search(str(raw.get("name"))):
        return name
    return f"{name} [{', '.join(f'{key}={_as_text(value)}' for key, value in values.items())}]"


# --- what can be checked before a run -----------------------------------------------------------------------


def _check(file: Path, skill: Path, case: Case, lines: Mapping[_Path, int], index: int) -> None:
    def line(*path: str | int) -> int:
        return lines.get(("cases", index, *path), lines.get(("cases", index), 1))

    checked: list[tuple[int, Any]] = [
        (line("tools"), lambda: FakeTools(case.answers)),
        (line("input"), lambda: _json(case.input)),
        *(
            (line("tools", name), lambda value=value: _json(value))
            for name, answers in case.answers.items()
            for answer in answers
            for value in (answer.when, answer.returns)
        ),
        *((line("expect"), lambda value=value: _json(value)) for value in _values(case)),
        (line("script"), lambda: _script(skill, case.script)),
        (line("limits"), lambda: Limits.model_validate({**Limits().model_dump(), **case.limits})),
        *((line("inputs"), lambda dest=dest: layout.absolute(dest)) for dest in case.inputs),
        *((line(), lambda path=path: _existing(file, skill, path)) for path in _named_fixtures(case)),
        *((line("expect"), lambda path=path: _golden(file, skill, path)) for path, _ in _goldens(case)),
        *((line("expect"), lambda text=text: re.compile(text)) for text in _patterns(case)),
        *(
            (
                line("expect", "files", number),
                lambda pattern=item.glob: globs.compile_globs(
                    [pattern], variables=layout.folders(run_id="run", skill="skill"), skill="skill"
                ),
            )
            for number, item in enumerate(case.expect.files)
        ),
    ]
    for where, check in checked:
        try:
            check()
        except (BadPathError, BadRequestError, GrantError) as error:
            raise _error(file, where, error.message, error.hint) from None
        except ValidationError as error:
            first = error.errors()[0]
            message = first["msg"].removeprefix("Value error, ")
            raise _error(file, where, f"{'.'.join(map(str, first['loc']))}: {message}") from None
        except re.error as error:
            raise _error(file, where, f"{error.pattern!r} is no regular expression: {error.msg}") from None
        except (OverflowError, RecursionError) as error:
            raise _error(file, where, f"holds a regular expression that is too much: {error}") from None
        except (OSError, UnicodeEncodeError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or "it holds half a character"
            raise _error(file, where, f"names a file that cannot exist: {why}") from None


def _json(value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:  # YAML has dates, sets and .nan
        raise BadRequestError(f"is not JSON: {error}", hint="Put dates in quotes.") from None


def _script(skill: Path, path: str | None) -> None:
    if path is not None:
        check_path(path)
        if not (skill / path).is_file():
            raise BadPathError(f"there is no script {path!r} in the skill")


def _named_fixtures(case: Case) -> Iterator[str]:
    for source in case.inputs.values():
        if isinstance(source, str):
            yield source
    if isinstance(case.stdin, StdinFile):
        yield case.stdin.file


def _goldens(case: Case) -> Iterator[tuple[str, str]]:
    for where in ("stdout", "stderr"):
        wanted = getattr(case.expect, where)
        if isinstance(wanted, TextExpectation) and wanted.golden:
            yield wanted.golden, where
    for item in case.expect.files:
        if item.golden:
            yield item.golden, item.glob


def _values(case: Case) -> Iterator[Any]:
    """What is expected as JSON."""
    expect = case.expect
    for item in (expect.stdout, expect.stderr, expect.result, *expect.files):
        if item is not None and not isinstance(item, str):
            yield item.json_
    if expect.result is not None:
        yield expect.result.equals


def _patterns(case: Case) -> Iterator[str]:
    wanted = [case.expect.stdout, case.expect.stderr, *case.expect.files]
    for item in wanted:
        if isinstance(item, TextExpectation | FileExpectation) and item.matches is not None:
            yield from (item.matches,) if isinstance(item.matches, str) else item.matches


def _fixture(file: Path, skill: Path, relative: str) -> Path:
    if os.path.isabs(relative) or "\0" in relative:
        raise BadPathError(f"{relative!r} is not a path beside the case file")
    found = Path(os.path.realpath(file.parent / relative))
    if not found.is_relative_to(skill.parent):
        raise BadPathError(
            f"{relative!r} leads out of {skill.parent}", hint="Copy the file beside the case file."
        )
    return found


def _existing(file: Path, skill: Path, relative: str) -> Path:
    found = _fixture(file, skill, relative)
    if not found.exists():
        raise BadPathError(f"there is no {relative!r} beside {file.name}")
    if found.is_file() and found.stat().st_size > MAX_FIXTURE:
        raise BadPathError(f"{relative!r} is larger than {MAX_FIXTURE >> 20} MiB")
    return found


def _golden(file: Path, skill: Path, relative: str) -> Path:
    found = _fixture(file, skill, relative)
    if not found.is_relative_to(skill) or found.is_dir():
        raise BadPathError(f"the golden file {relative!r} is not a file in the skill")
    return found
