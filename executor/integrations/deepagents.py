"""A backend for LangChain's deep agents: `create_deep_agent(backend=ExecutorSandbox(session))`.

The base class makes listing, searching, reading and editing of commands; so they happen in the sandbox, as
its user. Any number of threads may use a backend at the same time, which is what the `a…` methods do.
"""

from __future__ import annotations

import errno

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from executor.errors import BadPathError
from executor.integrations.files import FileCall, reading, writing
from executor.sync import Session

# What the protocol calls these; another error is told in the system's own words.
CODES = {
    errno.ENOENT: "file_not_found",
    errno.ENOTDIR: "file_not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.EISDIR: "is_directory",
    errno.ELOOP: "invalid_path",
    errno.ENAMETOOLONG: "invalid_path",
}


class ExecutorSandbox(BaseSandbox):
    """A session as a backend. Whoever opened the session closes it; `session` is for what the protocol lacks:
    `put`, `load`, `collect`.
    """

    def __init__(self, session: Session, *, max_download: int = 64 << 20) -> None:
        """`max_download`: bytes of one file that `download_files` hands out, default 64 MiB."""
        self.session = session
        self._most = max_download

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell line, with stdout and stderr as one text in the order in which they were written.

        `timeout` in seconds; None and 0 mean that of the settings. Of long output the middle is left out.
        """
        result = self.session.exec(f"exec 2>&1\n{command}", timeout=timeout or None)
        output = result.stdout
        if result.status in ("timeout", "oom", "lost"):
            output += f"\n[{result.status}: the command was ended]"
        return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=result.stdout_truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, each for itself: one that cannot be written leaves the others alone."""
        found = []
        for path, content in files:
            _, error = self._attempt(writing(path, content))
            found.append(FileUploadResponse(path=path, error=error))
        return found

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files, each for itself."""
        found = []
        for path in paths:
            content, error = self._attempt(reading(path, most=self._most))
            found.append(FileDownloadResponse(path=path, content=content, error=error))
        return found

    def _attempt(self, call: FileCall) -> tuple[bytes | None, str | None]:
        if not call.path.startswith("/"):
            return None, "invalid_path"
        try:
            return call.answer(self.session.exec(call.command, **call.options)), None
        except BadPathError:
            return None, "invalid_path"
        except OSError as error:
            return None, CODES.get(error.errno or 0, str(error))
