"""`run_skill_script`: a skill's script with an input, granted tools and its output files.

A run whose tool waits for a person stands still: the result says `awaiting_approval` and what is asked. The
application decides (`SkillToolset.pending`, `resume`); the model cannot.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping

from executor.bridge import ApprovalRequest, Decision, Grant, scripts
from executor.bridge.scripts import ScriptResult
from executor.errors import BadPathError, BadRequestError
from executor.models import ExecResult, OutputLimits, WaitingCall
from executor.session import AsyncFile, AsyncRun, AsyncSession
from executor.skills.contents import Resource, check_path
from executor.skills.repository import Skill
from executor.tools import commands
from executor.tools.desk import Desk
from executor.tools.inputs import RunScript
from executor.tools.knowledge import IMAGES
from executor.tools.outputs import FullOutput, ScriptOutput
from executor.tools.results import Image, RefusedError, ToolResult
from executor.tools.shown import STREAMS, Shown, file_line, output, output_lines, spill, status_line
from executor.workspace.text import clip, printable, printable_name

log = logging.getLogger("executor.tools")

FOLDER = "scripts/"
OUTPUTS = OutputLimits(max_files=20, inline_bytes=64_000)
MAX_IMAGES = 4  # shown of one run


async def run_skill_script(desk: Desk, args: RunScript) -> ToolResult:
    """Run a script to its end, or until it waits for a decision."""
    skill = desk.skill(args.skill)
    if desk.require_loaded and desk.state.get(skill.slug) is None:
        raise RefusedError(
            f"the skill {skill.slug!r} is not loaded",
            "Load it with skill_load first: its text says how the script is used.",
            kind="SkillNotFoundError",
        )
    await _check(desk, skill, args.path)
    session = await desk.session()
    if len(commands.of(desk, session).suspended) >= desk.options.max_commands:
        raise RefusedError("too many scripts wait for a person's decision", "Wait until some are decided.")
    grant = _grant(desk, session, skill.slug)
    await commands.bring(desk, session, args.inputs)
    run = await session.start_script(
        skill.slug,
        args.path,
        input=args.input,
        grant=grant,
        output_limits=OUTPUTS,
        max_output=desk.options.spill_bytes,
    )
    return await _waited(desk, session, run, {})


async def resume(desk: Desk, run_id: str, decisions: Mapping[str, bool | Decision]) -> ToolResult:
    """Go on with a run that waits, deciding about its calls by `call_id`."""
    session = desk.opened
    run = commands.of(desk, session).suspended.get(run_id) if session is not None else None
    if session is None or run is None:
        raise RefusedError(f"no run {run_id[:80]!r} waits for a decision", kind="BadRequestError")
    return await _waited(desk, session, run, decisions)


def pending(desk: Desk) -> list[ApprovalRequest]:
    """What the runs of this agent wait for."""
    session = desk.opened
    runs = commands.of(desk, session).suspended.values() if session is not None else ()
    return [request for run in runs for request in run.pending]


# --- inside -------------------------------------------------------------------------------------------------


async def _waited(
    desk: Desk, session: AsyncSession, run: AsyncRun, decisions: Mapping[str, bool | Decision]
) -> ToolResult:
    suspended = commands.of(desk, session).suspended
    suspended.pop(run.run_id, None)
    try:
        async with commands.reporting(desk):
            result = await run.resume(decisions)
    except asyncio.CancelledError:
        await asyncio.shield(commands.ended_quietly(run))
        raise
    except BadRequestError:
        suspended[run.run_id] = run  # a decision that was none: it still waits
        raise
    if not isinstance(result, ScriptResult):
        suspended[run.run_id] = run
        return await _shown(desk, session, result, [_pending(request) for request in run.pending])
    return await _shown(desk, session, result, [])


async def _check(desk: Desk, skill: Skill, path: str) -> None:
    """That the path is a script of the skill, as a model can mistake it."""
    name = f"{skill.slug}/{path}"
    check_path(path)
    loaded = desk.state.get(skill.slug)
    resources = loaded.resources if loaded is not None else (await desk.contents(skill)).resources
    if not path.startswith(FOLDER):
        raise RefusedError(
            f"Resource is not a script: {name}", f"Scripts lie below {FOLDER}: {_scripts(resources)}"
        )
    scripts.check_path(path)
    found = next((resource for resource in resources if resource.path == path), None)
    if found is None:
        raise BadPathError(f"Script not found: {name}", hint=f"There are: {_scripts(resources)}")
    if found.encoding != "text":
        raise BadPathError(f"Script resource must be text, got {found.encoding}: {name}")


def _scripts(resources: tuple[Resource, ...]) -> str:
    names = [resource.path for resource in resources if resource.path.startswith(FOLDER)]
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "") or "none"


def _grant(desk: Desk, session: AsyncSession, slug: str) -> Grant:
    """What the script may call: worked out for each run, and never more than the session's."""
    try:
        chosen = desk.grant(slug) if callable(desk.grant) else desk.grant
    except Exception as error:
        log.exception("what %r may call could not be worked out", slug)
        raise RefusedError("what the script may call could not be worked out", kind="GrantFailed") from error
    return chosen or session.grant or Grant()


def _pending(request: ApprovalRequest) -> WaitingCall:
    fields = {name: getattr(request, name) for name in WaitingCall.model_fields}
    return WaitingCall(**fields)


async def _shown(
    desk: Desk, session: AsyncSession, result: ExecResult, waits: list[WaitingCall]
) -> ToolResult:
    shown = Shown(desk.options.output_bytes)
    warnings = list(result.warnings)
    streams = {
        name: shown.stream(name, result.kept(name), getattr(result, f"{name}_bytes")) for name in STREAMS
    }
    if waits:  # what it has written so far comes with its end
        shown, streams = Shown(0), dict.fromkeys(STREAMS, "")
    script = result if isinstance(result, ScriptResult) else ScriptResult(**result.model_dump())
    lines, full = await _value(desk, session, script, warnings)
    if result.status != "lost":
        full += await spill(session, result.run_id, shown.cut, "", warnings)
    plain = output(desk, result, streams, full, warnings)
    own = {name: getattr(script, name) for name in ScriptOutput.model_fields if hasattr(script, name)}
    made = ScriptOutput(**{**own, **dict(plain)})
    made.next_offset, made.pending = made.total_bytes, waits
    if full and any(file.stream == "result" for file in full):
        made.result = None
    head = [status_line(made)]
    for call in waits:
        asked = printable(json.dumps(call.input, ensure_ascii=False))
        head.append(f"[a person decides about {call.tool}, and the run goes on: {asked[:500]}]")
    if script.error is not None:
        head.append(printable(f"Skill script failed: {script.error.message}"))
    head += [f"[output {printable_name(file.path)}: {file.mime}, {file.size} bytes]" for file in made.files]
    head += [file_line(file) for file in full]
    head += [f"warning: {warning}" for warning in made.warnings]
    text = "\n".join([*head, *lines, *output_lines(streams)])
    return ToolResult(text, made.model_dump(mode="json"), await _images(desk, result))


async def _value(
    desk: Desk, session: AsyncSession, script: ScriptResult, warnings: list[str]
) -> tuple[list[str], list[FullOutput]]:
    """What a function returned: the line that shows it, and the file that holds it when it is long."""
    if script.style != "function" or script.status != "ok":
        return [], []
    text = json.dumps(script.result, ensure_ascii=False)
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= desk.options.output_bytes:
        return [f"result: {printable(text)}"], []
    files = await spill(session, script.run_id, {"result": (data, True)}, "", warnings)
    return [f"result: {printable(clip(data, b'', len(data), desk.options.output_bytes)[0])}"], files


async def _images(desk: Desk, result: ExecResult) -> tuple[Image, ...]:
    found: list[Image] = []
    for file in result.files:
        wanted = file.mime in IMAGES and file.size <= desk.options.image_bytes
        if wanted and len(found) < MAX_IMAGES and isinstance(file, AsyncFile):
            found.append(Image(await file.read(), file.mime, printable_name(file.path)))
    return tuple(found)
