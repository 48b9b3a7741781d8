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

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from pydantic import ValidationError

from executor.errors import BadRequestError, ExecutorError, SkillNotFoundError
from executor.executor import AsyncExecutor
from executor.places import data_dir
from executor.session import AsyncSession
from executor.skills import prompt
from executor.skills.repository import Skill
from executor.skills.state import Loaded, LoadRequest, Mode, SkillState, merge_requests
from executor.skills.store import StateStore
from executor.sync import Executor, Session
from executor.tools import commands, invoke, knowledge
from executor.tools.desk import Desk, HostTool, Options, Progress, progress
from executor.tools.exports import Definition, export, schema
from executor.tools.inputs import InvokeSkill
from executor.tools.profiles import Offer, profile, skill_named
from executor.tools.results import RefusedError, ToolResult, failure
from executor.tools.table import TABLE
from executor.workspace.artifacts import ArtifactStore
from executor.workspace.text import printable, printable_name

MAX_ENUM = 256  # skills whose names stand in the schemas


class SkillToolset:
    """The tools of one agent in one session.

    `session`: an open session, or the id of one to open when a tool needs it. `agent`: whose loaded skills
    and running commands these are; those of another agent are never seen. `profile`: which tools, under which
    names (`executor.tools.PROFILES`). `mode`: how long a load lives (`SkillState`). `max_loaded`: how many
    skills may be loaded. `state`: the store, or its file (default `state.sqlite` in the data folder).
    `artifacts`: the store, its folder, or False for none (default `artifacts` in the data folder). `allow`:
    names of the tools to offer, of the profile's. `knowledge_only`: no tool that needs a sandbox. `visible`:
    which skills this agent may see; a hidden one does not exist for it. `scoped`: tools of the application by
    the skill that brings them. BadRequestError for what does not fit together.
    """

    def __init__(
        self,
        executor: AsyncExecutor,
        *,
        session: AsyncSession | str,
        agent: str = "main",
        profile: str = "trpc",
        mode: Mode = "turn",
        max_loaded: int | None = None,
        state: StateStore | str | Path | None = None,
        artifacts: ArtifactStore | str | Path | bool = True,
        allow: Iterable[str] | None = None,
        knowledge_only: bool = False,
        visible: Callable[[Skill], bool] | None = None,
        scoped: Mapping[str, Sequence[HostTool]] | None = None,
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
            state=SkillState(self._store, session=session_id, agent=agent, mode=mode, most=max_loaded),
            options=options or Options(),
            artifacts=artifacts or None,
            visible=visible,
            scoped=scoped or {},
        )
        self._offers = self._choose(allow, knowledge_only)
        self._scoped = _by_name(self._desk.scoped, {offer.name for offer in self._offers})

    def _choose(self, allow: Iterable[str] | None, knowledge_only: bool) -> tuple[Offer, ...]:
        offers = self.profile.offers
        if allow is not None:
            wanted = set(allow)
            names = {offer.name for offer in offers}
            if wanted - names:
                raise BadRequestError(
                    f"the profile {self.profile.name!r} has no tool {sorted(wanted - names)[0]!r}",
                    hint=f"Its tools: {', '.join(offer.name for offer in offers)}.",
                )
            offers = tuple(offer for offer in offers if offer.name in wanted)
        if knowledge_only:
            offers = tuple(offer for offer in offers if TABLE[offer.tool].needs == "skills")
        if self._desk.artifacts is None:
            offers = tuple(offer for offer in offers if TABLE[offer.tool].needs != "artifacts")
        return offers

    # -- for the application --

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
        offered = [self._definition(offer, skills) for offer in self._offered(skills)]
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
        return "\n\n".join(part.strip("\n") for part in parts if part.strip())

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

    async def begin_turn(self, declared: Sequence[LoadRequest] = ()) -> None:
        """A new turn of the conversation: loads of mode `turn` end, and `declared` skills are loaded.

        All of them or none: BadRequestError for a request that contradicts itself or asks for a document or
        a skill that is not there, before anything has changed.
        """
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
        self.state.begin_turn(expansions)
        for expansion in expansions:
            self._desk.stage_anew(expansion.skill)

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
        store = self._desk.artifacts
        session = await self._desk.session()
        artifact = store.resolve(ref)
        path = to or f"inputs/{artifact.name.rpartition('/')[2]}"
        if pin:
            artifact = store.resolve(ref, pin=path)
        await session.put(path, store.read(artifact))
        return path

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
            given = _arguments(arguments)
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
                raise RefusedError(f"{offer.name}: unknown argument {theirs!r}", self._usage(offer))
            ours[known] = value
        fields = tool.input.model_fields
        # Models write null for what they leave out.
        ours = {key: value for key, value in ours.items() if value is not None or key not in fields}
        if isinstance(ours.get("skill"), str) and self.profile.skill_id is not str:
            ours["skill"] = skill_named(self.profile, self._desk.skills(), ours["skill"].strip())
        try:
            checked = tool.input.model_validate(ours)
        except ValidationError as error:
            raise RefusedError(_wrong(offer, error), self._usage(offer), kind="InvalidArguments") from None
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
        return [offer for offer in self._offers if skills or TABLE[offer.tool].needs != "skills"]

    def _definition(self, offer: Offer, skills: list[Skill]) -> Definition:
        tool = TABLE[offer.tool]
        made = schema(tool.input)
        theirs = {ours: name for name, ours in offer.arguments.items()}
        properties = {
            theirs.get(name, name): field
            for name, field in made.get("properties", {}).items()
            if name not in offer.hidden
        }
        names = sorted(self.profile.skill_id(skill.slug) for skill in skills)
        if "skill" in made.get("properties", {}) and 0 < len(names) <= MAX_ENUM:
            properties[theirs.get("skill", "skill")]["enum"] = names
        parameters: dict[str, Any] = {"type": "object", "properties": properties}
        if required := [theirs.get(name, name) for name in made.get("required", [])]:
            parameters["required"] = required
        parameters["additionalProperties"] = False
        output = None if offer.shaped else schema(tool.output, output=True)
        description = offer.description or tool.description
        if offer.name == self.profile.catalogue_in and names:
            listed = prompt.overview(
                skills, most=self._desk.options.max_overview, header="<available_skills>"
            )
            description += f"\n\n{listed}\n</available_skills>"
        return Definition(offer.name, description, parameters, output, tool.read_only)

    def _usage(self, offer: Offer) -> str:
        properties = self._definition(offer, []).input_schema
        required = properties.get("required", [])
        names = [name if name in required else f"{name}?" for name in properties["properties"]]
        return f"Arguments of {offer.name}: {', '.join(names) or 'none'}"


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

    def begin_turn(self, declared: Sequence[LoadRequest] = ()) -> None:
        """A new turn of the conversation: loads of mode `turn` end, and `declared` skills are loaded."""
        self._loop.run(self._inner.begin_turn(declared))

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


# The argument of the same name hides it above.
_profile = profile


def _state_file(executor: AsyncExecutor) -> Path:
    folder = executor.settings.state_dir
    return (Path(folder) if folder else data_dir()) / "state.sqlite"


def _by_name(scoped: Mapping[str, Sequence[HostTool]], taken: set[str]) -> dict[str, HostTool]:
    """The scoped tools; several skills may bring the same one."""
    found: dict[str, HostTool] = {}
    for tools in scoped.values():
        for tool in tools:
            if tool.name in taken or found.setdefault(tool.name, tool) is not tool:
                raise BadRequestError(f"two different tools are called {tool.name!r}")
    return found


def _arguments(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except ValueError as error:
            raise RefusedError(
                f"the arguments are no JSON: {error}", "Send one JSON object.", kind="InvalidArguments"
            ) from None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RefusedError(
            f"the arguments are {type(given).__name__} and not an object",
            "Send one JSON object.",
            kind="InvalidArguments",
        )
    return {str(key): value for key, value in given.items()}


def _wrong(offer: Offer, error: ValidationError) -> str:
    """What is wrong with the arguments, each with the value that was given."""
    theirs = {ours: name for name, ours in offer.arguments.items()}
    said = []
    for problem in error.errors()[:5]:
        where = [str(part) for part in problem["loc"]]
        name = ".".join([theirs.get(where[0], where[0]), *where[1:]]) if where else "arguments"
        if problem["type"] == "missing":
            said.append(f"{name} is required")
        elif problem["type"] == "extra_forbidden":
            said.append(f"unknown argument {name!r}")
        else:
            value = repr(problem["input"])
            said.append(f"{name}={value if len(value) <= 80 else value[:77] + '...'}: {problem['msg']}")
    return f"{offer.name}: " + "; ".join(said)
