"""A tool as a profile offers it: its definition for the skills there are, and its usage in one line."""

from __future__ import annotations

from typing import Any

from executor.skills import prompt
from executor.skills.repository import Skill
from executor.tools.exports import Definition, schema
from executor.tools.profiles import Offer, Profile
from executor.tools.table import TABLE

MAX_ENUM = 256  # skills whose names stand in the schemas


def definition(profile: Profile, offer: Offer, skills: list[Skill], *, most: int | None = None) -> Definition:
    """The definition. `most`: as of `prompt.overview`, for the tool that holds the catalogue."""
    tool = TABLE[offer.tool]
    made = schema(tool.input)
    theirs = {ours: name for name, ours in offer.arguments.items()}
    properties = {
        theirs.get(name, name): field
        for name, field in made.get("properties", {}).items()
        if name not in offer.hidden
    }
    names = sorted(profile.skill_id(skill.slug) for skill in skills)
    if "skill" in made.get("properties", {}) and 0 < len(names) <= MAX_ENUM:
        properties[theirs.get("skill", "skill")]["enum"] = names
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [theirs.get(name, name) for name in made.get("required", [])]:
        parameters["required"] = required
    parameters["additionalProperties"] = False
    output = None if offer.shaped else schema(tool.output, output=True)
    description = offer.description or tool.description
    if offer.name == profile.catalogue_in and names:
        listed = prompt.overview(skills, most=most, header="<available_skills>")
        description += f"\n\n{listed}\n</available_skills>"
    return Definition(offer.name, description, parameters, output, tool.read_only)


def usage(profile: Profile, offer: Offer) -> str:
    """What arguments it takes; those with a `?` may be left out."""
    properties = definition(profile, offer, []).input_schema
    required = properties.get("required", [])
    names = [name if name in required else f"{name}?" for name in properties["properties"]]
    return f"Arguments of {offer.name}: {', '.join(names) or 'none'}"
