"""Tools about what skills say: load, unload, select and list documents, read a file of a skill.

None of them starts a sandbox. What they read is checked against what is loaded: a skill that changed since
is not shown half old and half new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from executor import spans
from executor.errors import BadPathError
from executor.skills import prompt
from executor.skills.contents import Contents, check_path, read_resource
from executor.skills.repository import Skill
from executor.skills.state import Expansion, Loaded
from executor.tools.desk import Desk
from executor.tools.inputs import (
    ActivateSkill,
    ExitSkill,
    ListDocs,
    LoadSkill,
    ReadResource,
    SelectDocs,
    UnloadSkill,
)
from executor.tools.outputs import (
    DocsListed,
    DocsSelected,
    ResourceInfo,
    ResourceRead,
    SkillLoaded,
    SkillUnloaded,
)
from executor.tools.results import Image, RefusedError, ToolResult
from executor.workspace import mime
from executor.workspace.text import decode, torn_tail

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_BODY = 256 << 10  # characters of a SKILL.md; the largest public one has 190,579
MAX_DOC_BYTES = 256 << 10  # of all documents that one call shows


async def skill_load(desk: Desk, args: LoadSkill) -> ToolResult:
    """Load a skill and show what it says."""
    skill = desk.skill(args.skill)
    expansion = await expand(desk, skill, args.docs, args.include_all_docs)
    before = desk.state.get(skill.slug)
    same = before is not None and before.digest == expansion.digest
    known = desk.shown.get(skill.slug) == expansion.digest or desk.options.placement == "system"
    unchanged = before is not None and (before.docs, before.all_docs) == (expansion.docs, expansion.all_docs)
    if before is not None and same and known and unchanged:
        desk.state.touch(skill.slug)
        note = (
            f"loaded: {skill.slug}\nIt is already loaded and has not changed; its text stands above. "
            "To see it again, read its SKILL.md."
        )
        return _load_result(desk, skill, before, note, already=True)
    loaded = desk.state.load(expansion)
    if not same:
        desk.stage_anew(skill.slug)
    note = f"loaded: {skill.slug}"
    desk.shown[skill.slug] = loaded.digest
    if desk.options.placement == "result":
        note += f"\n{desk.options.prompts.skill(loaded)}"
    return _load_result(desk, skill, loaded, note, already=same)


async def skill_unload(desk: Desk, args: UnloadSkill) -> ToolResult:
    """Take a skill out."""
    slug = args.skill.strip()
    if desk.state.get(slug) is None:
        try:
            slug = desk.skill(args.skill).slug  # by another of its names
        except RefusedError:
            pass
    desk.state.unload(slug)
    return _unloaded(desk, slug)


async def exit_skill(desk: Desk, args: ExitSkill) -> ToolResult:
    """Take out the skill that was activated last."""
    slug = desk.state.exit()
    if slug is None:
        raise RefusedError("no skill is active", "There is nothing to exit.", kind="SkillNotFoundError")
    return _unloaded(desk, slug)


async def activate_skill(desk: Desk, args: ActivateSkill) -> ToolResult:
    """Load a skill without choosing documents."""
    return await skill_load(desk, LoadSkill(skill=args.skill))


async def skill_select_docs(desk: Desk, args: SelectDocs) -> ToolResult:
    """Choose which documents of a loaded skill are shown."""
    skill = desk.skill(args.skill)
    loaded = _loaded(desk, skill)
    mode = args.mode if args.mode in ("add", "replace", "clear") else "replace"
    docs: Mapping[str, str] = {}
    if mode != "clear":
        contents = await _unchanged(desk, skill)
        docs = _read_docs(skill, contents, args.docs, args.include_all_docs)
    chosen = desk.state.select(skill.slug, docs, mode=mode, include_all=args.include_all_docs)
    shown = [path for path in chosen.docs if loaded.docs.get(path) != chosen.docs[path]]
    made = DocsSelected(
        skill=skill.slug, selected_docs=list(chosen.docs), include_all_docs=chosen.all_docs, mode=mode
    )
    lines = [f"selected docs of {skill.slug}: {', '.join(chosen.docs) or 'none'}"]
    if desk.options.placement == "result":
        kinds = {resource.path: resource.kind for resource in chosen.resources}
        lines += [
            prompt.skill_resource(skill.slug, path, chosen.docs[path], kinds.get(path, "file"))
            for path in shown
        ]
    return ToolResult("\n".join(lines), made.model_dump(mode="json"))


async def skill_list_docs(desk: Desk, args: ListDocs) -> ToolResult:
    """The documents that can be selected."""
    skill = desk.skill(args.skill)
    docs = list((await desk.contents(skill)).docs)
    made = DocsListed(skill=skill.slug, docs=docs)
    return ToolResult("\n".join(docs) or f"{skill.slug} has no documents", made.model_dump(mode="json"))


async def read_skill_resource(desk: Desk, args: ReadResource) -> ToolResult:
    """Show one file of a skill."""
    skill, path = _resource(desk, args.skill, args.path)
    if desk.state.get(skill.slug) is not None:
        await _unchanged(desk, skill)
    contents = await desk.contents(skill)
    if not contents.resources and path.lower() != "skill.md":
        raise RefusedError(f'Skill "{skill.slug}" has no readable resources.', "It has its SKILL.md only.")
    data = read_resource(skill, path)
    known = next((resource for resource in contents.resources if resource.path == path), None)
    kind = known.kind if known else "file"
    media = mime.guess(path.rpartition("/")[2], data[: mime.HEAD_BYTES], len(data))
    made = ResourceRead(
        skill=skill.slug,
        path=path,
        kind=kind,
        encoding="base64",
        mime=media,
        size=len(data),
        offset=args.offset,
        next_offset=None,
        content=None,
    )
    about = f"{skill.slug}/{path}: {kind}, {media}, {len(data)} bytes"
    try:
        text = None if b"\0" in data else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = None
    if text is None:
        if media in IMAGES and len(data) <= desk.options.image_bytes:
            return ToolResult(about, made.model_dump(mode="json"), (Image(data, media, path),))
        note = f"{about}; it is no text. A command can use it at skills/{skill.slug}/{path}."
        return ToolResult(note, made.model_dump(mode="json"))
    if args.offset > len(data):
        raise RefusedError(f"offset={args.offset} is behind the end: {path} has {len(data)} bytes")
    piece = data[args.offset : args.offset + desk.options.read_bytes]
    whole = args.offset == 0 and len(piece) == len(data)
    if args.offset + len(piece) < len(data):
        piece = piece[: len(piece) - torn_tail(piece)]  # a character that is cut comes with the next piece
    shown = text if whole else decode(piece)
    end = args.offset + len(piece)
    made.encoding, made.content = "text", prompt.harmless(shown)
    made.next_offset = end if end < len(data) else None
    note = "" if whole else f"bytes {args.offset} to {end} of {len(data)}"
    block = prompt.skill_resource(skill.slug, path, shown, kind, note=note)
    if made.next_offset is not None:
        block += f"\n[go on with offset={end}]"
    return ToolResult(block, made.model_dump(mode="json"))


# --- what the caller uses too -------------------------------------------------------------------------------


async def expand(desk: Desk, skill: Skill, docs: Sequence[str] = (), include_all: bool = False) -> Expansion:
    """A skill as it is now, with documents, ready to be loaded. RefusedError, SkillError."""
    about = {"exec_id": desk.state.session, "agent": desk.agent, "skill": skill.slug}
    with spans.span("skill.load", **about) as span:
        contents = await desk.contents(skill)
        span.say(digest=contents.digest)
        return Expansion(
            skill=skill.slug,
            digest=contents.digest,
            body=_body(skill),
            resources=contents.resources,
            docs=_read_docs(skill, contents, docs, include_all),
            all_docs=include_all,
            tools=tuple(tool.name for tool in desk.scoped.get(skill.slug, ())),
        )


# --- inside -------------------------------------------------------------------------------------------------


def _load_result(desk: Desk, skill: Skill, loaded: Loaded, text: str, *, already: bool) -> ToolResult:
    hidden = max(0, len(loaded.resources) - prompt.MAX_LISTED)
    made = SkillLoaded(
        skill=skill.slug,
        version=prompt.version(loaded.digest),
        digest=loaded.digest,
        already_loaded=already,
        docs=list(loaded.docs),
        include_all_docs=loaded.all_docs,
        resources=[ResourceInfo(**vars(resource)) for resource in loaded.resources[: prompt.MAX_LISTED]],
        warnings=list(skill.document.warnings) + ([f"{hidden} more files are not listed"] if hidden else []),
    )
    return ToolResult(text, made.model_dump(mode="json"))


def _unloaded(desk: Desk, slug: str) -> ToolResult:
    left = [loaded.skill for loaded in desk.state.loaded()]
    made = SkillUnloaded(skill=slug, loaded=left)
    return ToolResult(f"unloaded: {slug}\nloaded: {', '.join(left) or 'none'}", made.model_dump(mode="json"))


def _body(skill: Skill) -> str:
    body = skill.document.body
    if len(body) <= MAX_BODY:
        return body
    return (
        f"{body[:MAX_BODY]}\n[cut after {MAX_BODY:,} characters; read_skill_resource shows all of SKILL.md]"
    )


def _read_docs(skill: Skill, contents: Contents, docs: Sequence[str], include_all: bool) -> dict[str, str]:
    there = contents.docs
    names = list(there) if include_all else list(dict.fromkeys(docs))
    missing = [name for name in names if name not in there]
    if missing:
        raise RefusedError(
            f"{skill.slug} has no document {', '.join(map(repr, missing))}",
            f"Its documents: {', '.join(there) or 'none'}",
            kind="SkillUnavailable",
        )
    sizes = {resource.path: resource.size for resource in contents.resources}
    total = sum(sizes[name] for name in names)
    if total > MAX_DOC_BYTES:
        raise RefusedError(
            f"documents of {skill.slug} with {total:,} bytes together; {MAX_DOC_BYTES:,} can be shown",
            "Choose some of them, or read one with read_skill_resource: "
            + ", ".join(f"{name} ({sizes[name]:,} bytes)" for name in names),
        )
    return {name: read_resource(skill, name).decode("utf-8-sig", "replace") for name in names}


def _loaded(desk: Desk, skill: Skill) -> Loaded:
    loaded = desk.state.get(skill.slug)
    if loaded is None:
        raise RefusedError(
            f"the skill {skill.slug!r} is not loaded",
            "Load it with skill_load first.",
            kind="SkillNotFoundError",
        )
    return loaded


async def _unchanged(desk: Desk, skill: Skill) -> Contents:
    """Its files, if they are those that were loaded."""
    contents = await desk.contents(skill)
    loaded = desk.state.get(skill.slug)
    if loaded is not None and loaded.digest != contents.digest:
        raise RefusedError(
            f"the skill {skill.slug!r} has changed since it was loaded",
            "Load it again to work with the new version.",
            kind="SkillChanged",
        )
    return contents


def _resource(desk: Desk, name: str | None, path: str) -> tuple[Skill, str]:
    if path.startswith("../"):
        raise BadPathError(f"{path!r} leaves the skill", hint="Write skill/path, or name the skill.")
    check_path(path)
    if name is not None and name.strip():
        return desk.skill(name), path
    first, slash, rest = path.partition("/")
    if not slash:
        raise RefusedError(
            "Skill resource path must include a skill name when name is omitted: " + repr(path),
            "Name the skill, or write its name in front of the path.",
        )
    try:
        return desk.skill(first), rest
    except RefusedError as error:
        raise RefusedError(
            f"Unknown skill in qualified resource path: {first}", error.hint, kind="SkillNotFoundError"
        ) from None
