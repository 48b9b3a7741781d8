"""The tools that a model calls: `SkillToolset` for any framework, profiles, definitions.

from executor import AsyncExecutor
from executor.tools import SkillToolset

async with AsyncExecutor(skills=["./skills"]) as executor:
    tools = SkillToolset(executor, session="s1")
    result = await tools.call("skill_load", {"skill": "sales-report"})
"""

from executor.skills.catalogue import Summary
from executor.skills.prompt import Prompts
from executor.skills.state import LoadRequest
from executor.tools.desk import Fork, HostTool, Options
from executor.tools.invoke import Invocation, Message, Slash
from executor.tools.policy import CommandPolicy
from executor.tools.profiles import PROFILES
from executor.tools.results import Image, ToolResult
from executor.tools.sandbox import Sandbox, SkillMetadata, discover_skills
from executor.tools.sync import SyncSkillToolset
from executor.tools.toolset import SkillToolset

__all__ = [
    "PROFILES",
    "CommandPolicy",
    "Fork",
    "HostTool",
    "Image",
    "Invocation",
    "LoadRequest",
    "Message",
    "Options",
    "Prompts",
    "Sandbox",
    "SkillMetadata",
    "SkillToolset",
    "Slash",
    "Summary",
    "SyncSkillToolset",
    "ToolResult",
    "discover_skills",
]
