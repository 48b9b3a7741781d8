"""The text about skills that a model reads: the overview, the guidance, and loaded skills between tags.

Rules of this module:
1. Pure: values in, text out. The same values give the same bytes, whatever the user said, so that a prompt
   cache keeps its prefix.
2. Text of a skill stands between tags that name the skill and its version. Content that holds such a tag
   itself cannot close them or open others: its `<` becomes `&lt;`. All other content stays as it is.
3. What is hidden, empty or switched off leaves no heading behind.

Every part can be replaced: `Prompts(overview=…, skill=…, guidance=…)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from executor.skills.contents import Resource
from executor.skills.repository import Skill
from executor.skills.state import Expansion, Loaded
from executor.workspace.text import printable, printable_name

HEADER = "Available skills:"
FALLBACK_HEADER = "Loaded skill context:"
MAX_DESCRIPTION = 1024  # characters; the format allows as many
MAX_LISTED = 200  # files of one skill
VERSION_DIGITS = 12
TAGS = ("skill_content", "skill_resources", "skill_resource", "skill_doc", "available_skills")

# `<` and `</` in front of one of our names, also with blanks or invisible characters between. Possessive:
# whoever writes a skill could otherwise make this take hours.
_GAP = r"[\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]*+"
_TAG = re.compile(rf"<(?={_GAP}/?+{_GAP}(?:{'|'.join(TAGS)})(?![A-Za-z0-9_]))", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")

GUIDANCE = """\
How to use skills:
- A skill is a folder of instructions, documents and scripts for one kind of task. When a task matches a \
description above, load the skill before you work on it; do not guess what it says.
- Loading shows its text. Documents that the text names can be read one by one when they are needed.
- A skill's files are in skills/<name> (also /skills/<name>) once it is loaded.
- Text between <skill_content> or <skill_resource> tags comes from a skill's author and not from the user."""

WORKSPACE_GUIDANCE = """\
How to use the workspace:
- Commands start in /workspace; paths are relative to it. Use one base for all paths of a command.
- Read the user's files in inputs/, keep intermediate files in work/, put what is for the user into out/.
- There is no network. Nothing outside of /workspace and /skills is kept.
- A command that goes on returns a session_id; it belongs to you and ends with the session."""


def overview(
    skills: Sequence[Skill],
    *,
    most: int | None = None,
    header: str = HEADER,
    written: Callable[[str], str] = str,
) -> str:
    """The catalogue: `- name: description`, sorted by name; the first `most` in full, the rest by name.

    `written` makes of a skill's slug what this system calls it.
    """
    if not skills:
        return ""
    ordered = sorted(skills, key=lambda skill: skill.slug)
    full = ordered if most is None else ordered[: max(0, most)]
    rest = ordered[len(full) :]
    lines = [header]
    for skill in full:
        description = one_line(skill.document.description)
        lines.append(f"- {written(skill.slug)}" + (f": {description}" if description else ""))
    if rest:
        lines.append(
            f"(showing {len(full)} of {len(ordered)}; these can be loaded too: "
            + ", ".join(written(skill.slug) for skill in rest)
            + ")"
        )
    return "\n".join(lines)


def skill_content(loaded: Expansion) -> str:
    """A loaded skill: its body, what files it has, and its selected documents."""
    lines = [
        f"<skill_content name={_quoted(loaded.skill)} version={_quoted(version(loaded.digest))}>",
        harmless(loaded.body.rstrip("\n")),
    ]
    if loaded.resources:
        lines += ["", "<skill_resources>", *map(_listed, loaded.resources[:MAX_LISTED]), "</skill_resources>"]
        if len(loaded.resources) > MAX_LISTED:
            lines.append(f"({len(loaded.resources) - MAX_LISTED} more files are not listed)")
    lines.append("</skill_content>")
    chosen = "all" if loaded.all_docs else ", ".join(map(one_line, loaded.docs)) or "none"
    lines.append(f"Docs loaded: {chosen}")
    for path, text in loaded.docs.items():
        resource = next((r for r in loaded.resources if r.path == path), None)
        lines.append(skill_resource(loaded.skill, path, text, resource.kind if resource else "file"))
    return "\n".join(lines)


def skill_resource(skill: str, path: str, text: str, kind: str = "file", *, note: str = "") -> str:
    """One file of a skill between tags. `note` is an attribute that says which part this is."""
    rest = ' encoding="text"' + (f" part={_quoted(note)}" if note else "")
    head = f"<skill_resource name={_quoted(skill)} path={_quoted(path)} kind={_quoted(kind)}{rest}>"
    return f"{head}\n{harmless(text.rstrip(chr(10)))}\n</skill_resource>"


def loaded_block(loaded: Iterable[Loaded], *, render: Callable[[Loaded], str] = skill_content) -> str:
    """Loaded skills for the system text, the one touched longest ago first."""
    blocks = [f"[Loaded] {one.skill}\n{render(one)}" for one in loaded]
    return "\n\n".join([FALLBACK_HEADER, *blocks]) if blocks else ""


def not_shown(loaded: Iterable[Loaded], conversation: Iterable[str]) -> list[Loaded]:
    """Those whose text does not stand in the conversation any more, as it is loaded now.

    A conversation that was cut or summed up has lost it: then it belongs into the system text. A document
    that was selected later may stand in another message than the body.
    """
    texts = list(conversation)
    return [one for one in loaded if not _stands(one, texts)]


def _stands(one: Loaded, texts: list[str]) -> bool:
    marks = [f"<skill_content name={_quoted(one.skill)} version={_quoted(version(one.digest))}>"]
    marks += [f"<skill_resource name={_quoted(one.skill)} path={_quoted(path)} " for path in one.docs]
    return all(any(mark in text for text in texts) for mark in marks)


def version(digest: str) -> str:
    """What the tags say of the version: it changes with any byte of the skill."""
    return digest[:VERSION_DIGITS]


def harmless(text: str) -> str:
    """The text, unable to close our tags or to open new ones, or to hide or reorder what a model reads."""
    return printable(_TAG.sub("&lt;", text))


def one_line(text: str) -> str:
    """A description or a name as one line without control characters."""
    line = harmless(" ".join(_CONTROL.sub(" ", text).split()))
    return line if len(line) <= MAX_DESCRIPTION else line[: MAX_DESCRIPTION - 1] + "…"


def _listed(resource: Resource) -> str:
    return (
        f'<file kind="{resource.kind}" encoding="{resource.encoding}" size="{resource.size}">'
        f"{_escaped(resource.path)}</file>"
    )


def _quoted(text: str) -> str:
    return quoteattr(printable_name(_CONTROL.sub(" ", text)))


def _escaped(text: str) -> str:
    return (
        printable_name(_CONTROL.sub(" ", text))
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )


@dataclass(frozen=True)
class Prompts:
    """The parts of the text. Each may be replaced; None means the usual one, '' leaves the section out."""

    overview: Callable[[Sequence[Skill]], str] | None = None
    skill: Callable[[Loaded], str] = skill_content
    guidance: str | None = None
    workspace_guidance: str | None = None
