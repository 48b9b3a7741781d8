"""`SyncSkillToolset`: `SkillToolset` for callers without an event loop. A test compares the two."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from executor.bridge import ApprovalRequest, Decision
from executor.errors import BadRequestError
from executor.skills import prompt
from executor.skills.repository import Skill
from executor.skills.state import Loaded, LoadRequest, SkillState
from executor.sync import Executor, Session
from executor.tools import invoke
from executor.tools.desk import Progress
from executor.tools.results import ToolResult
from executor.tools.toolset import SkillToolset
from executor.workspace.artifacts import ArtifactStore


class SyncSkillToolset:
    """The same for an `Executor`, without an event loop. See `SkillToolset` for the arguments."""

    def __init__(self, executor: Executor, *, session: Session | str, **options: Any) -> None:
        if not isinstance(executor, Executor):
            raise BadRequestError(
                f"SyncSkillToolset works with an Executor, and this is {type(executor).__name__}",
                hint="With an event loop: SkillToolset(AsyncExecutor(…), …).",
            )
        self._loop = executor._loop
        inner = session if isinstance(session, str) else session._inner
        self._inner = SkillToolset(executor._inner, session=inner, **options)
        self.profile = self._inner.profile

    @contextlib.contextmanager
    def request(self, context: Any) -> Iterator[None]:
        """What is called in the block belongs to one request, of which `filter` is told `context`."""
        with self._inner.request(context):
            yield

    @property
    def state(self) -> SkillState:
        """What this agent has loaded."""
        return self._inner.state

    @property
    def artifacts(self) -> ArtifactStore | None:
        """Where artifacts are kept."""
        return self._inner.artifacts

    def session(self) -> Session:
        """The session, started, with the files of the loaded skills in it."""
        return Session(self._loop, self._loop.run(self._inner.session()))

    @property
    def opened(self) -> Session | None:
        """The session, if a tool has needed it."""
        inner = self._inner.opened
        return None if inner is None else Session(self._loop, inner)

    def skills(self) -> list[Skill]:
        """The skills that this agent may see, sorted by slug."""
        return self._inner.skills()

    def skill(self, name: str) -> Skill:
        """One of them, by any of its names. SkillNotFoundError."""
        return self._inner.skill(name)

    def load(self, skill: Skill) -> Loaded:
        """Load a skill for the caller, as a tool's call does for the model."""
        return self._loop.run(self._inner.load(skill))

    def definitions(self, form: str = "json-schema") -> list[dict[str, Any]]:
        """The tools as `openai`, `anthropic`, `mcp` or `json-schema` want them."""
        return self._inner.definitions(form)

    def system_prompt(
        self, conversation: Iterable[str] | None = None, *, prompts: prompt.Prompts | None = None
    ) -> str:
        """The text about skills and the workspace for the system message."""
        return self._inner.system_prompt(conversation, prompts=prompts)

    def begin_turn(self, declared: Sequence[LoadRequest] = ()) -> bool:
        """A new turn of the conversation; whether the catalogue changed. See `SkillToolset.begin_turn`."""
        return self._loop.run(self._inner.begin_turn(declared))

    def begin_request(self, conversation: Iterable[str] | None = None) -> str:
        """A model request: what has served its time ends. Returns the system text for it."""
        return self._inner.begin_request(conversation)

    def slash(self, text: str, builtins: Collection[str] = ()) -> invoke.Slash:
        """What a user's line means. See `SkillToolset.slash`."""
        return self._inner.slash(text, builtins)

    def invoke(self, name: str, args: str = "") -> invoke.Invocation:
        """Invoke a skill for the user. See `SkillToolset.invoke`."""
        return self._loop.run(self._inner.invoke(name, args))

    def put_artifact(self, ref: str, to: str = "", *, pin: bool = False) -> str:
        """Put an artifact into the workspace, by default at `inputs/<name>`; returns the path."""
        return self._loop.run(self._inner.put_artifact(ref, to, pin=pin))

    @property
    def pending(self) -> list[ApprovalRequest]:
        """The calls of scripts that wait for a decision."""
        return self._inner.pending

    def resume(self, run_id: str, decisions: Mapping[str, bool | Decision]) -> ToolResult:
        """Decide about calls of a script that waits, by `call_id`; its result, or what it waits for now."""
        return self._loop.run(self._inner.resume(run_id, decisions))

    def close(self) -> None:
        """End this agent's commands. The session stays open."""
        self._loop.run(self._inner.close())

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        progress: Progress | None = None,
    ) -> ToolResult:
        """Call a tool. `progress` is called in the loop's thread."""
        return self._loop.run(self._inner.call(name, arguments, progress=progress))
