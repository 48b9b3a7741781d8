"""`SkillToolset`: the tools of one agent in one session, for any framework.

    tools = SkillToolset(executor, session="s1")
    tools.definitions("openai"), tools.system_prompt()
    result = await tools.call("skill_load", {"skill": "sales-report"})

Rules of this module:
1. A call that is wrong gives a result that says what, with which value, and what to do. Only faults of this
   program are raised.
2. What the model sees first (definitions, system text) depends on the skills and the options and on nothing
   that was said, so a prompt cache keeps it. What is loaded comes in results, or at the end of the text.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from pydantic import ValidationError

from executor.bridge import ApprovalRequest, Decision
from executor.errors import BadRequestError, ExecutorError, SkillNotFoundError
from executor.executor import AsyncExecutor
from executor.models import Input
from executor.places import data_dir
from executor.session import AsyncSession
from executor.skills import prompt
from executor.skills.catalogue import Filter, fingerprint
from executor.skills.repository import Skill
from executor.skills.state import Loaded, LoadRequest, Mode, SkillState, merge_requests
from executor.skills.store import StateStore
from executor.state import FILE
from executor.tools import commands, desk, invoke, knowledge, offers, scripts
from executor.tools.desk import Desk, Grants, HostTool, Options, Progress, progress
from executor.tools.exports import Definition, export
from executor.tools.inputs import InvokeSkill, read_arguments, wrong_arguments
from executor.tools.profiles import Offer, profile, skill_named
from executor.tools.results import RefusedError, ToolResult, failure
from executor.tools.table import TABLE
from executor.workspace.artifacts import ArtifactStore
from executor.workspace.text import printable, printable_name


class SkillToolset:
    """The tools of one agent in one session.

    `session`: an open session, or the id of one to open when a tool needs it. `agent`: whose loaded skills
    and running commands these are; those of another agent are never seen. `profile`: which tools, under which
    names (`executor.tools.PROFILES`). `mode`: how long a load lives (`SkillState`), default the profile's.
    `max_loaded`: how many skills may be loaded. `state`: the store, or its file (default `state.sqlite` in
    the state folder).
    `artifacts`: the store, its folder, or False for none (default `artifacts` in the data folder). `allow`:
    names of the tools to offer, of the profile's. `knowledge_only`: no tool that needs a sandbox.
    `filter(context, summary)`: whether a skill exists for a request (`request`). `scoped`: tools of the
    application by the skill that brings them. `grant`: what scripts may call, or a function that says it for
    a skill, asked for each run; default what the session grants. BadRequestError for what does not fit.
    """

    def __init__(
        self,
        executor: AsyncExecutor,
        *,
        session: AsyncSession | str,
        agent: str = "main",
        profile: str = "trpc",
        mode: Mode | None = None,
        max_loaded: int | None = None,
        state: StateStore | str | Path | None = None,
        artifacts: ArtifactStore | str | Path | bool = True,
        allow: Iterable[str] | None = None,
        knowledge_only: bool = False,
        filter: Filter | None = None,
        scoped: Mapping[str, Sequence[HostTool]] | None = None,
        grant: Grants | None = None,
        options: Options | None = None,
    ) -> None:
        if not isinstance(executor, AsyncExecutor):
            raise BadRequestError(
                f"SkillToolset works with an AsyncExecutor, and this is {type(executor).__name__}",
                hint="Without an event loop: SyncSkillToolset(Executor(…), …).",
            )
        session_id = session if isinstance(session, str) else session.id
        self.profile = _profile(profile)
        self._own_store = not isinstance(state, StateStore)
        self._store = state if isinstance(state, StateStore) else StateStore(state or _state_file(executor))
        if artifacts is True:
            artifacts = data_dir() / "artifacts"
        if isinstance(artifacts, (str, Path)):
            artifacts = ArtifactStore(artifacts, scope=session_id)
        self._desk = Desk(
            executor,
            session,
            agent=agent,
            state=SkillState(
                self._store, session=session_id, agent=agent, mode=mode or self.profile.mode, most=max_loaded
            ),
            options=options or Options(),
            artifacts=artifacts or None,
            chosen=filter,
            scoped=scoped or {},
            grant=grant,
            require_loaded=self.profile.require_loaded,
            nested=self.profile.nested,
        )
        self._offers = self._choose(allow, knowledge_only)
        self._scoped = _by_name(self._desk.scoped, {offer.name for offer in self._offers})

    def _choose(self, allow: Iterable[str] | None, knowledge_only: bool) -> tuple[Offer, ...]:
        chosen = self.profile.offers
        if allow is not None:
            wanted = set(allow)
            names = {offer.name for offer in chosen}
            if wanted - names:
                raise BadRequestError(
                    f"the profile {self.profile.name!r} has no tool {sorted(wanted - names)[0]!r}",
                    hint=f"Its tools: {', '.join(offer.name for offer in chosen)}.",
                )
            chosen = tuple(offer for offer in chosen if offer.name in wanted)
        if knowledge_only:
            chosen = tuple(offer for offer in chosen if TABLE[offer.tool].needs == "skills")
        if self._desk.artifacts is None:
            chosen = tuple(offer for offer in chosen if TABLE[offer.tool].needs != "artifacts")
        return chosen

    # -- for the application --

    @contextlib.contextmanager
    def request(self, context: Any) -> Iterator[None]:
        """What is called in the block belongs to one request, of which `filter` is told `context`."""
        token = desk.context.set(context)
        try:
            yield
        finally:
            desk.context.reset(token)

    @property
    def state(self) -> SkillState:
        """What this agent has loaded."""
        return self._desk.state

    @property
    def artifacts(self) -> ArtifactStore | None:
        """Where artifacts are kept."""
        return self._desk.artifacts

    async def session(self) -> AsyncSession:
        """The session, started, with the files of the loaded skills in it."""
        return await self._desk.session()

    @property
    def opened(self) -> AsyncSession | None:
        """The session, if a tool has needed it."""
        return self._desk.opened

    def skills(self) -> list[Skill]:
        """The skills that this agent may see, sorted by slug."""
        return self._desk.skills()

    def skill(self, name: str) -> Skill:
        """One of them, by any of its names. SkillNotFoundError."""
        try:
            return self._desk.skill(name)
        except RefusedError as error:
            raise SkillNotFoundError(error.message, hint=error.hint) from None

    async def load(self, skill: Skill) -> Loaded:
        """Load a skill for the caller, as a tool's call does for the model."""
        loaded = self.state.load(await knowledge.expand(self._desk, skill))
        self._desk.stage_anew(skill.slug)
        return loaded

    def definitions(self, form: str = "json-schema") -> list[dict[str, Any]]:
        """The tools for `openai`, `anthropic`, `mcp` or `json-schema`. Loading changes none of it."""
        skills = self._desk.skills()
        offered = [
            offers.definition(self.profile, offer, skills, most=self._desk.options.max_overview)
            for offer in self._offered(skills)
        ]
        offered += [
            Definition(tool.name, tool.description, dict(tool.input_schema), None, False)
            for tool in self._scoped.values()
        ]
        return export(offered, form)

    def system_prompt(
        self, conversation: Iterable[str] | None = None, *, prompts: prompt.Prompts | None = None
    ) -> str:
        """The text about skills and the workspace for the system message.

        With the placement `system` the loaded skills follow. With `result` those that the caller declared,
        and, when `conversation` is given (the texts of the messages that the model will see), only and all
        those whose text does not stand in it.
        `prompts` replaces parts for this request.
        """
        skills = self._desk.skills()
        chosen = prompts or self._desk.options.prompts
        offered = self._offered(skills)
        parts = [self._overview(skills, chosen)]
        if skills:
            parts.append(self.profile.guidance if chosen.guidance is None else chosen.guidance)
        if any(TABLE[offer.tool].needs != "skills" for offer in offered) and self.profile.guidance:
            usual = chosen.workspace_guidance is None
            parts.append(prompt.WORKSPACE_GUIDANCE if usual else chosen.workspace_guidance or "")
        parts.append(prompt.loaded_block(self._to_show(conversation), render=chosen.skill))
        return printable("\n\n".join(part.strip("\n") for part in parts if part.strip()))

    def _overview(self, skills: list[Skill], chosen: prompt.Prompts) -> str:
        if chosen.overview is not None:
            return chosen.overview(skills)
        if self.profile.catalogue_in:
            return ""
        return prompt.overview(
            skills,
            most=self._desk.options.max_overview,
            header=self.profile.header,
            written=self.profile.skill_id,
        )

    def _to_show(self, conversation: Iterable[str] | None) -> list[Loaded]:
        loaded = self.state.loaded()
        if self._desk.options.placement == "system":
            return loaded
        # What the caller declared was never the result of a call.
        texts = () if conversation is None else tuple(conversation)
        missing = prompt.not_shown(loaded, texts)
        return missing if conversation is not None else [one for one in missing if one.declared]

    async def begin_turn(self, declared: Sequence[LoadRequest] = ()) -> bool:
        """A new turn of the conversation: loads of mode `turn` end, and `declared` skills are loaded.

        The catalogue is looked at now and stays as it is for the turn; what is loaded keeps its text. Returns
        whether it is another one than in the turn before, be that of another process.
        All declared loads or none: BadRequestError for a request that contradicts itself or asks for a
        document or a skill that is not there, before anything has changed.
        """
        catalogue = await asyncio.to_thread(self._desk.look)
        requests = merge_requests(declared, most=self.state.most)
        expansions = []
        for request in requests:
            try:
                skill = self._desk.skill(request.name)
                expansions.append(
                    await knowledge.expand(self._desk, skill, request.docs, request.include_all_docs)
                )
            except RefusedError as error:
                raise BadRequestError(f"declared load: {error.message}", hint=error.hint) from None
        changed = self.state.begin_turn(expansions, catalogue=fingerprint(catalogue))
        self._desk.begin_turn(catalogue)
        for expansion in expansions:
            self._desk.stage_anew(expansion.skill)
        return changed

    def begin_request(self, conversation: Iterable[str] | None = None) -> str:
        """A model request: what has served its time ends. Returns `system_prompt(conversation)` for it."""
        self.state.begin_request()
        return self.system_prompt(conversation)

    def slash(self, text: str, builtins: Collection[str] = ()) -> invoke.Slash:
        """What a user's line means: a command of the application (`builtins`, without the `/`), a skill with
        arguments, a command that does not exist, or ordinary text.
        """
        return invoke.find(text, self._desk.skills(), builtins)

    async def invoke(self, name: str, args: str = "") -> invoke.Invocation:
        """Invoke a skill for the user: a message that says so, its text as a hidden one, and the permissions.

        SkillNotFoundError; BadRequestError for a skill that is not for users.
        """
        skill = self.skill(name)
        about = invoke.definition(skill)
        if not about.user_invocable:
            raise BadRequestError(f"the skill {skill.slug!r} is not for users to invoke")
        result = await invoke.skill_invoke(self._desk, InvokeSkill(skill=skill.slug, args=args))
        says = (
            f'<command-message>The "{skill.slug}" skill is loading</command-message>\n'
            f"<command-name>{skill.slug}</command-name>"
        )
        if args.strip():
            says += f"\n<command-args>{escape(args.strip())}</command-args>"
        text = invoke.Message(result.text, is_meta=result.structured["context"] == "inline")
        return invoke.Invocation((invoke.Message(says), text), about.tools, about.model)

    async def put_artifact(self, ref: str, to: str = "", *, pin: bool = False) -> str:
        """Put an artifact into the workspace, by default at `inputs/<name>`; returns the path.

        With `pin` the version that came to this path first comes again, until `ref` names another one.
        """
        if self._desk.artifacts is None:
            raise BadRequestError("there is no place for artifacts here")
        session = await self._desk.session()
        (staged,) = await session.stage_inputs([Input(ref, to, pin=pin)], artifacts=self._desk.artifacts)
        return staged.path

    @property
    def pending(self) -> list[ApprovalRequest]:
        """The calls of scripts that wait for a decision."""
        return scripts.pending(self._desk)

    async def resume(self, run_id: str, decisions: Mapping[str, bool | Decision]) -> ToolResult:
        """Decide about calls of a script that waits, by `call_id`; its result, or what it waits for now."""
        try:
            result = await scripts.resume(self._desk, run_id, decisions)
        except (RefusedError, ExecutorError) as error:
            return failure(error)
        offer = next((offer for offer in self._offers if offer.tool == "run_skill_script"), None)
        return result if offer is None or offer.shape is None else offer.shape(self._desk, result)

    async def close(self) -> None:
        """End this agent's commands. The session stays open: it belongs to whoever opened it."""
        session = self._desk.opened
        if session is not None:
            await commands.of(self._desk, session).close()
        if self._own_store:
            self._store.close()

    # -- for the model --

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        progress: Progress | None = None,
    ) -> ToolResult:
        """Call a tool. `arguments`: a map, or JSON of one. `progress` is called about once a second.

        Cancelling the call ends what it runs.
        """
        offer = next((offer for offer in self._offers if offer.name == name), None)
        try:
            given = read_arguments(arguments)
            if offer is None:
                return await self._call_scoped(name, given)
            result = await self._call(offer, given, progress)
        except (RefusedError, ExecutorError) as error:
            result = failure(error)
        if offer is not None and offer.shape is not None:
            return offer.shape(self._desk, result)
        return result

    async def _call(self, offer: Offer, given: dict[str, Any], report: Progress | None) -> ToolResult:
        tool = TABLE[offer.tool]
        ours = {}
        for theirs, value in given.items():
            known = offer.arguments.get(theirs, theirs)
            if theirs in offer.hidden or (known == theirs and theirs in offer.arguments.values()):
                raise RefusedError(
                    f"{offer.name}: unknown argument {theirs!r}", offers.usage(self.profile, offer)
                )
            ours[known] = value
        fields = tool.input.model_fields
        # Models write null for what they leave out.
        ours = {key: value for key, value in ours.items() if value is not None or key not in fields}
        if isinstance(ours.get("skill"), str) and self.profile.skill_id is not str:
            ours["skill"] = skill_named(self.profile, self._desk.known(), ours["skill"].strip())
        try:
            checked = tool.input.model_validate(ours)
        except ValidationError as error:
            wrong = wrong_arguments(offer.name, offer.arguments, error)
            raise RefusedError(wrong, offers.usage(self.profile, offer), kind="InvalidArguments") from None
        if self.profile.permissions and tool.needs != "skills":
            invoke.permit(self._desk, offer.name, checked)
        token = progress.set(report)
        try:
            return await tool.handler(self._desk, checked)
        finally:
            progress.reset(token)

    async def _call_scoped(self, name: str, given: dict[str, Any]) -> ToolResult:
        tool = self._scoped.get(name)
        if tool is None:
            names = [*(offer.name for offer in self._offered(self._desk.skills())), *self._scoped]
            raise RefusedError(
                f"there is no tool {printable_name(name)[:80]!r}",
                f"Tools: {', '.join(names)}",
                kind="UnknownTool",
            )
        if not self.state.owners(name):
            bringing = [self.profile.skill_id(slug) for slug, own in self._desk.scoped.items() if tool in own]
            raise RefusedError(
                f"the tool {name!r} cannot be called: no active skill brings it",
                f"Load {' or '.join(bringing)} first.",
                kind="ToolNotActive",
            )
        try:
            answer = tool.handler(given)
            text = await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            # The application's own fault: its text may hold what no model should see.
            raise RefusedError(
                f"the tool {name!r} failed ({type(error).__name__})", kind="ToolFailed"
            ) from error
        return ToolResult(printable(text))

    # -- inside --

    def _offered(self, skills: list[Skill]) -> list[Offer]:
        needless = ("sandbox", "artifacts")
        return [offer for offer in self._offers if skills or TABLE[offer.tool].needs in needless]


# The argument of the same name hides it above.
_profile = profile


def _state_file(executor: AsyncExecutor) -> Path:
    return executor.store.folder / FILE


def _by_name(scoped: Mapping[str, Sequence[HostTool]], taken: set[str]) -> dict[str, HostTool]:
    """The scoped tools; several skills may bring the same one."""
    found: dict[str, HostTool] = {}
    for tools in scoped.values():
        for tool in tools:
            if tool.name in taken or found.setdefault(tool.name, tool) is not tool:
                raise BadRequestError(f"two different tools are called {tool.name!r}")
    return found
