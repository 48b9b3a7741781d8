"""Which programs a model's command line may name. Fails closed: what is not understood is refused.

What it can do: keep a well-meaning model to the programs it was given, and make a refusal explain itself.
What it cannot do: contain a program. An allowed `python3`, `find -exec` or `git` runs whatever its arguments
say. The sandbox is the boundary; this is a guard rail in front of it.

The line is read here and not by a shell: plain words, quoted or not, joined by `|`, `&&`, `||` and `;`.
Everything in which a shell would see more than that is refused, whatever program it names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from executor.errors import BadRequestError
from executor.tools.results import RefusedError

MAX_BYTES = 16 << 10
MAX_PROGRAMS = 32  # in one line
JOINS = ("&&", "||", "|", ";")
# Characters of a word that a shell gives a meaning to, outside of quotes and inside of double ones.
SPECIAL = frozenset("$`\\<>(){}[]*?!#&~\n\r\0")
SPECIAL_IN_QUOTES = frozenset("$`\\!\n\r\0")
_KEYWORDS = "if then else elif fi case esac for select while until do done in function time coproc"
# Programs and builtins that run what their arguments say, or change what names mean. Never allowed.
_ALWAYS_DENIED = """
    sh bash dash ash ksh zsh csh tcsh fish busybox toybox
    eval exec source . command builtin trap alias unalias export set unset declare typeset local readonly
    shopt enable hash cd pushd popd printf read mapfile readarray let
    xargs env nohup timeout sudo su doas setsid setarch linux32 linux64 nice ionice chrt taskset stdbuf time
    watch parallel script scriptreplay flock strace ltrace gdb unshare nsenter chroot pivot_root prlimit
    systemd-run at batch crontab start-stop-daemon runuser setpriv capsh choom chpst
"""
_LOADER = re.compile(r"ld(-linux.*|-musl.*)?\.so.*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)

# Variables of a call that change which program a name means, or what a program does before it begins.
_UNSAFE_VARIABLES = """
    HOME ENV BASH_ENV PROMPT_COMMAND PS4 SHELL SHELLOPTS BASHOPTS PATH IFS CDPATH GLOBIGNORE
    OPENSSL_CONF PYTHONSTARTUP PYTHONPATH PYTHONHOME NODE_OPTIONS PERL5OPT PERL5LIB RUBYOPT
"""
UNSAFE_PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

KEYWORDS = frozenset(_KEYWORDS.split())
ALWAYS_DENIED = frozenset(_ALWAYS_DENIED.split())
UNSAFE_VARIABLES = frozenset(_UNSAFE_VARIABLES.split())


@dataclass(frozen=True)
class CommandPolicy:
    """`allow`: programs that may be named, exactly as written (None: all; empty: none). `deny`: programs that
    may not, by the last part of their path in any case. A program that is in both is denied.
    """

    allow: Collection[str] | None = None
    deny: Collection[str] = ()

    def __post_init__(self) -> None:
        for words in (self.allow, self.deny):
            if isinstance(words, str):
                raise BadRequestError(f"a policy has lists of programs, and {words!r} is a text")

    def check(self, command: str) -> None:
        """RefusedError, with the reason, for a line that this policy does not let through."""
        denied = {_last_part(name) for name in self.deny}
        for program in programs(command):
            name = _last_part(program)
            if name in denied:
                raise _refused(f"{program!r} is denied here")
            if name in ALWAYS_DENIED or _LOADER.fullmatch(name):
                raise _refused(f"{program!r} runs other programs or changes what names mean: always denied")
            if self.allow is not None and program not in self.allow:
                allowed = ", ".join(sorted(self.allow)) or "none"
                raise _refused(f"{program!r} is not allowed here (allowed: {allowed})")

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The variables of a call without those that would change what the line means."""
        return {
            name: value
            for name, value in given.items()
            if _VARIABLE.fullmatch(name)
            and name not in UNSAFE_VARIABLES
            and not name.startswith(UNSAFE_PREFIXES)
        }


def programs(command: str) -> list[str]:
    """The programs that a line names, in order. RefusedError when it is more than plain words and joins."""
    return [words[0] for words in commands(command)]


def commands(command: str) -> list[list[str]]:
    """The commands of a line, in order, each as its words. RefusedError as `programs`."""
    if len(command.encode("utf-8", "replace")) > MAX_BYTES:
        raise _refused(f"the line is longer than {MAX_BYTES:,} bytes")
    found: list[list[str]] = []
    at_start = True
    for kind, token in _tokens(command):
        if kind == "join":
            if at_start:
                raise _refused(f"there is no program in front of {token!r}")
            at_start = True
        elif at_start:
            if _ASSIGNMENT.match(token):
                raise _refused(f"{token!r} sets a variable: give it as env")
            if token in KEYWORDS or not token:
                raise _refused(f"{token!r} is no program")
            found.append([token])
            at_start = False
        else:
            found[-1].append(token)
    if at_start and not (found and command.rstrip().endswith(";")):
        raise _refused("there is no program at the end of the line" if found else "the line is empty")
    if len(found) > MAX_PROGRAMS:
        raise _refused(f"the line names more than {MAX_PROGRAMS} programs")
    return found


def _tokens(command: str) -> Iterator[tuple[str, str]]:
    """("word", text) and ("join", text)."""
    position = 0
    word: list[str] | None = None
    while position < len(command):
        character = command[position]
        join = next((join for join in JOINS if command.startswith(join, position)), None)
        if join is not None or character in " \t":
            if word is not None:
                yield "word", "".join(word)
                word = None
            if join is not None:
                if command.startswith(("|&", ";;"), position):
                    raise _refused(f"{command[position : position + 2]!r} is not let through")
                yield "join", join
            position += len(join) if join is not None else 1
        elif character in "'\"":
            end = command.find(character, position + 1)
            if end < 0:
                raise _refused("a quote is not closed")
            quoted = command[position + 1 : end]
            special = SPECIAL_IN_QUOTES if character == '"' else frozenset("\n\r\0")
            if bad := next((inner for inner in quoted if inner in special), None):
                raise _refused(f"{bad!r} in quotes is not let through")
            word = [] if word is None else word
            word.append(quoted)
            position = end + 1
        elif character in SPECIAL:
            raise _refused(f"{character!r} is not let through: only plain words, quotes, |, &&, || and ;")
        else:
            word = [] if word is None else word
            word.append(character)
            position += 1
    if word is not None:
        yield "word", "".join(word)


def _last_part(program: str) -> str:
    return program.rstrip("/").rpartition("/")[2].casefold()


def _refused(why: str) -> RefusedError:
    return RefusedError(
        f"the command is not let through: {why}",
        "Write plain words joined by |, &&, || or ;, without variables, redirections or globs.",
        kind="CommandDenied",
    )
