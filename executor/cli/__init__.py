"""The command line: `executor run|test|skills|images|doctor`.

    app.py        the list of commands; from words to an action to an exit status
    options.py    the options that several commands have
    arguments.py  option values to what the library takes; pure, but for looking whether a file exists
    running.py    `run`: its options and help
    run.py        what it does: stage, execute, bring files back
    script.py     `script`: the same for a skill's script with a JSON input
    relay.py      a script's output on its way to this process's stdout and stderr
    skills.py     `skills list|show`
    export.py     `skills export|bundle`
    fetching.py   what is seen while skills are fetched
    mcp.py        `mcp`: the MCP server
    lint.py       `skills lint`
    test.py       `test`: case files, reports
    images.py     `images build|list`
    diagnosis.py  `doctor`, as a table; the checks are in `executor.doctor`
    console.py    everything this program itself says
    signals.py    Ctrl-C and SIGTERM

Only the module of the command that the words name is imported, and an engine's SDK, YAML or the library
itself where it needs them: imports are most of the time that a command takes.
"""

from executor.cli.app import main

__all__ = ["main"]
