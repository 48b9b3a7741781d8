"""Who a script is: a user with a name and a home, whatever uid its session has."""

from __future__ import annotations

from executor import Session

ASK = """
import getpass, grp, os, pwd
entry = pwd.getpwuid(os.getuid())
print(getpass.getuser(), entry.pw_name, grp.getgrgid(os.getgid()).gr_name)
environment = dict(os.environ)
os.environ.pop("HOME")
print(os.path.expanduser("~") == entry.pw_dir == environment["HOME"])
for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
    os.environ.pop(name, None)
print(getpass.getuser())
"""


def test_a_script_has_a_name_and_a_home(shared: Session) -> None:
    assert shared.exec(["python3", "-c", ASK]).stdout == "sandbox sandbox sandbox\nTrue\nsandbox\n"
    result = shared.exec("whoami; id -un; id -gn; env -i /usr/bin/whoami; node -p 'os.userInfo().username'")
    assert (result.stdout.split(), result.stderr) == (["sandbox"] * 5, "")


def test_programs_that_look_themselves_up_work(shared: Session) -> None:
    line = (
        "cd work && git init -q r && cd r && "
        "git -c user.name=a commit -q --allow-empty -m x && git log --format=%an"
    )
    result = shared.exec(line, env={"EMAIL": "a@example.org"})
    assert (result.stdout, result.exit_code) == ("a\n", 0), result.stderr
