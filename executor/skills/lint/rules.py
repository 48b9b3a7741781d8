"""The table of lint rules, and what a finding is. Data: nothing here looks at a skill.

`error`: the skill is against the specification, or cannot be used by some loader or by this one.
`warning`: it works here, and breaks or surprises elsewhere. `note`: worth knowing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field


class Severity(enum.StrEnum):
    """How bad it is. The values are SARIF's levels."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Rule:
    """One thing that is checked."""

    id: str
    severity: Severity
    summary: str
    advice: str
    """What to do about it."""
    fixable: bool = False
    """Whether `--fix` can mend it (not always: a text of several lines is left to its author)."""


@dataclass(frozen=True)
class Fix:
    """A mechanical repair of one file: exactly one of the three is set."""

    change: Callable[[bytes], bytes] | None = None
    """The new content from the present one; looks for its place itself, so that several can follow."""
    mode: Callable[[int], int] | None = None
    """The new permission bits from the present ones."""
    rename: str = ""
    """The new name in the same folder."""


@dataclass(frozen=True)
class Finding:
    """One rule broken at one place."""

    rule: Rule
    skill: str
    """Path of the skill's folder, as the caller wrote the root."""
    path: str
    """Of the file, relative to the skill's folder, `/`-separated; '' for the folder itself."""
    line: int
    """From 1; 1 also where a line says nothing, as for a picture."""
    message: str
    """What is wrong, with the value. Untrusted text inside: escape it where it is shown."""
    fix: Fix | None = field(default=None, compare=False, repr=False)


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_QUOTE = "Put the value in double quotes."

_TABLE: tuple[Rule, ...] = (
    # the file SKILL.md itself
    Rule("skill-unreadable", _E, "SKILL.md cannot be read as text", "Save it as plain UTF-8 text."),
    Rule("skill-link", _E, "SKILL.md is a link that leads nowhere or out of the skill",
         "Put the file itself into the folder."),
    Rule("skill-file-name", _E, "the file is not called SKILL.md, in capitals", "Rename it.", True),
    Rule("skill-file-twice", _E, "SKILL.md exists in several spellings", "Keep one file, called SKILL.md."),
    Rule("skill-executable", _N, "SKILL.md is marked as a program", "chmod -x it.", True),
    Rule("encoding", _E, "SKILL.md is not UTF-8", "Save it as UTF-8."),
    Rule("bom", _W, "SKILL.md begins with a byte order mark, behind which some loaders see no front matter",
         "Save it without one.", True),
    Rule("crlf", _W, "SKILL.md has CRLF line ends, with which some loaders lose name and description",
         "Save it with LF line ends; `* text=auto eol=lf` in .gitattributes keeps them.", True),
    # front matter, its form
    Rule("front-missing", _E, "there is no front matter",
         "Begin the file with a line `---`, `name:` and `description:`, and another `---`."),
    Rule("front-late", _E, "something stands before the opening ---", "Make `---` the first line.", True),
    Rule("front-wrapped", _E, "the file is wrapped in a code fence", "Take the ``` lines off."),
    Rule("front-unclosed", _E, "the front matter has no closing ---", "Close it with a line `---`."),
    Rule("front-glued", _E, "text is glued to the closing ---", "Put the text on a line of its own.", True),
    Rule("front-yaml", _E, "the front matter is not valid YAML", _QUOTE, True),
    Rule("front-hash", _E, "YAML cuts the value off at ' #'", _QUOTE, True),
    Rule("front-duplicate", _E, "a key is repeated: strict loaders refuse it, others keep the last",
         "Keep one of them."),
    Rule("front-control", _E, "control characters in the front matter", "Remove them."),
    Rule("front-dashes", _W, "'---' inside a value: loaders that split at it cut the front matter short",
         "Write it without three hyphens in a row."),
    Rule("front-type", _E, "YAML reads the value as something other than text", _QUOTE, True),
    Rule("front-flow", _W, "a map or list in braces or brackets, which the reference validator refuses",
         "Write one item a line, indented."),
    Rule("front-brace", _W, "a closing brace at the left margin, an error for js-yaml", "Indent it."),
    Rule("front-key-case", _W, "a key in another spelling than the specification's", "Rename it.", True),
    Rule("front-key-unknown", _N, "a key that the specification does not know",
         "Move it below `metadata:`, unless it is meant for one product."),
    # front matter, its content
    Rule("name-missing", _E, "there is no name", "Add `name:` with the folder's name."),
    Rule("name-length", _E, "the name is longer than 64 characters", "Shorten it, and the folder's name."),
    Rule("name-characters", _E,
         "a name is lower-case letters, digits and single hyphens, none of them at an end",
         "Rename it, and the folder with it."),
    Rule("name-folder", _E, "name and folder differ", "Rename one of them."),
    Rule("name-duplicate", _W, "two skills have one name", "Rename one of them."),
    Rule("description-missing", _E, "there is no description",
         "Say what the skill does and when to use it."),
    Rule("description-length", _E, "the description is longer than 1,024 characters",
         "Move details into the body."),
    Rule("description-angle", _W, "angle brackets in the description, which some validators refuse",
         "Write it without < and >."),
    Rule("compatibility-length", _E, "compatibility is longer than 500 characters", "Shorten it."),
    Rule("compatibility-type", _W, "compatibility is not text", "Write it as one sentence."),
    Rule("metadata-type", _W, "metadata is not a map", "Write `key: value` lines, indented."),
    Rule("metadata-nested", _W, "metadata holds a map or a list; the specification has text to text",
         "Write the value as text."),
    Rule("tools-form", _W, "allowed-tools is not text with blanks between the tools",
         "Write `allowed-tools: Read Grep Bash(git *)`."),
    Rule("body-empty", _W, "there are no instructions below the front matter", "Say how to do the task."),
    Rule("body-length", _W, "the body has more than 500 lines",
         "Move details into files of references/ that the body names."),
    # the folder
    Rule("skill-nested", _W, "a skill inside another skill: some loaders find it, some do not",
         "Move it beside the other one."),
    Rule("skill-size", _W, "the skill is very large", "Leave out what scripts do not need at run time."),
    Rule("own-folder", _W, "the skill ships a folder that the sandbox links to the workspace",
         "Rename it; out, work and inputs belong to the run."),
    Rule("file-missing", _E, "SKILL.md links to a file that is not there", "Add the file or mend the link."),
    Rule("file-named-missing", _W, "SKILL.md names a file of the skill that is not there",
         "Add the file or mend the name."),
    Rule("file-outside", _W, "SKILL.md points to a file outside the skill, which is not staged with it",
         "Copy the file into the skill."),
    Rule("file-name", _W, "a file name that breaks commands or hides what it is", "Rename the file."),
    Rule("file-special", _E, "neither a file nor a folder nor a link", "Remove it."),
    Rule("link-outside", _E, "a link leads out of the skill: it is left out of the copy",
         "Put the file itself there."),
    Rule("link-dangling", _E, "a link leads nowhere", "Remove it or restore what it points to."),
    # scripts
    Rule("script-mode", _W, "a script with a shebang that may not be executed",
         "chmod +x it; with git: `git update-index --chmod=+x`.", True),
    Rule("script-crlf", _E, "a script with CRLF line ends: no interpreter is called `bash\\r`",
         "Save it with LF line ends.", True),
    Rule("script-bom", _E, "a byte order mark before the shebang", "Save it without one.", True),
    Rule("script-shebang", _W, "the shebang names a program of one machine",
         "Write `#!/usr/bin/env` and the interpreter's name.", True),
    Rule("script-one-line", _E, "the script is one line with the letters \\n in it",
         "Replace them by line breaks."),
    Rule("script-syntax", _W, "the script is not valid Python", "Mend it; Python 2 is not run."),
    Rule("script-long", _W, "the script is so long that it is not parsed for what it imports",
         "Move parts of it into modules beside it."),
    Rule("import-undeclared", _W, "a third-party package that nothing declares",
         "Name it in requirements.txt, in a `# /// script` block, in package.json or in `compatibility:`."),
    Rule("network", _W, "the script needs the network, which the sandbox does not have",
         "Take the data as input files, or say in `compatibility:` that it needs the internet."),
)  # fmt: skip

RULES: dict[str, Rule] = {rule.id: rule for rule in _TABLE}
"""Every rule by its id, in the order in which they are documented."""
