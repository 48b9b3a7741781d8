"""The network as a capability: test 43 of the behaviour list, and scripts that want more than they were granted.

The origins are real servers on this machine's loopback, which a run reaches only because the grant lists that
range. W-01, W-02: what is allowed works the same in every language, and what is not is refused by name.
"""
# ruff: noqa: E501 (the scripts inside are other languages' lines)

from __future__ import annotations

import hashlib
import importlib.util
import json
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme

from executor import BridgeLimits, Executor, Grant, NetworkPolicy, NetworkRule, Session, allow
from tests.conformance.probes import eventually

LARGE = bytes(range(256)) * 40_000


class Origin(BaseHTTPRequestHandler):
    """Says what it was asked."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, str, str]]] = []

    def do_GET(self) -> None:
        self.seen.append((self.command, self.path, str(self.headers.get("Authorization"))))
        if self.path.startswith("/to/"):
            self.answer(302, b"", Location="http://" + self.path[4:])
        elif self.path == "/large":
            self.answer(200, LARGE)
        elif self.path == "/wait":
            time.sleep(30)
        else:
            self.answer(200, f"{self.command} {self.path}".encode())

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, hashlib.sha256(data).hexdigest()))
        self.answer(200, b"%d bytes" % len(data))

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        pass


class Origins:
    """Two servers, one of them with TLS, under the names `api.test` and `other.test`."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("api.test", "other.test").configure_cert(context)
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), Origin) for _ in range(2)]
        for server in self.servers:
            server.daemon_threads = True
        self.servers[1].socket = context.wrap_socket(self.servers[1].socket, server_side=True)
        self.port, self.tls = (server.server_port for server in self.servers)
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def allow(self, *rules: Any, ports: tuple[int, ...] = ()) -> NetworkPolicy:
        return allow(
            rules or [NetworkRule("api.test", ports or (self.port, self.tls))],
            allow_private=["127.0.0.0/8"],
            resolve={
                "api.test": ["127.0.0.1"],
                "other.test": ["127.0.0.1"],
                "inner.test": ["10.0.0.1"],
            }.__getitem__,
            ca=self.ca,
        )

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origins]:
    made = Origins(tmp_path_factory.mktemp("origins"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Origin.seen.clear()


def network(session: Session, run_id: str) -> list[dict[str, Any]]:
    found = [entry for entry in session.audit.records if entry.get("run_id") == run_id]
    return [entry for entry in found if entry["event"] == "network"]


# -- 43: the same in three languages ------------------------------------------------------------------

PYTHON = """
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print("error", error)
"""
NODE = """
for (const url of process.argv.slice(2))
  await fetch(url).then(async (answer) => console.log(answer.status, (await answer.text()).trim()))
    .catch((error) => console.log('error', error.cause?.message ?? error.message));
"""
BASH = r"""
for url; do
  curl -sSL --max-time 20 -w ' %{http_code}\n' "$url" 2>&1 | tr '\n' ' '; echo
done
"""


@pytest.fixture(scope="module")
def getters(shared: Session, origins: Origins) -> dict[str, list[str]]:
    for name, text in (
        ("get.py", PYTHON),
        ("get.mjs", NODE),
        ("get.sh", BASH),
        ("ca.pem", origins.ca.read_text()),
    ):
        shared.put(f"work/{name}", text)
    return {
        "python": ["python3", "work/get.py"],
        "node": ["node", "work/get.mjs"],
        "bash": ["bash", "work/get.sh"],
    }


TRUST = dict.fromkeys(("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE"), "/workspace/work/ca.pem")


@pytest.mark.parametrize("language", ["python", "node", "bash"])
def test_43_one_host_is_allowed(
    shared: Session, origins: Origins, getters: dict[str, list[str]], language: str
) -> None:
    """ref-43"""
    urls = [
        f"http://api.test:{origins.port}/x?y=z",
        f"http://other.test:{origins.port}/",
        f"http://api.test:{origins.port}/to/other.test:{origins.port}/",
        f"http://api.test:{origins.port}/to/169.254.169.254/latest/meta-data/",
        "http://inner.test/",
        f"http://10.0.0.1:{origins.port}/",
        f"https://api.test:{origins.tls}/secret",
        f"https://other.test:{origins.tls}/",
    ]
    policy = origins.allow(NetworkRule("api.test", (origins.port, origins.tls)), "inner.test")
    result = shared.exec([*getters[language], *urls], grant=Grant(network=policy), env=TRUST, timeout=60)
    lines = result.stdout.splitlines()
    assert len(lines) == len(urls), (result.stdout, result.stderr)
    assert "GET /x?y=z" in lines[0]
    assert "200" in lines[0]
    for line, why in zip(
        lines[1:6],
        [
            f"other.test:{origins.port} is not allowed to this run",
            f"other.test:{origins.port} is not allowed to this run",
            "169.254.169.254:80 is not allowed to this run",
            "inner.test leads to an address that is not public",
            f"10.0.0.1:{origins.port} is not allowed to this run",
        ],
    ):
        # Node's fetch tunnels plain requests too, and does not tell what a refused tunnel is answered.
        assert line.startswith("error") if language == "node" else why in line
    assert "GET /secret" in lines[6]
    assert "GET" not in lines[7]
    assert [path for _, path, _ in Origin.seen if not path.startswith("/to/")] == ["/x?y=z", "/secret"]
    eventually(lambda: len(network(shared, result.run_id)) == 10)  # a tunnel's record is written at its end
    found = network(shared, result.run_id)
    assert [entry["method"] for entry in found if entry["decision"] == "allow"] == ["GET"] * 3 + ["CONNECT"]
    denied = [entry["host"] for entry in found if entry["decision"] == "deny"]
    assert denied == ["other.test", "other.test", "169.254.169.254", "inner.test", "10.0.0.1", "other.test"]


def test_43_without_a_grant_there_is_no_way(
    shared: Session, origins: Origins, getters: dict[str, list[str]]
) -> None:
    """ref-43, TH-51"""
    for grant in (None, Grant()):
        for command in getters.values():
            result = shared.exec([*command, f"http://api.test:{origins.port}/"], grant=grant)
            assert "200" not in result.stdout
        assert "proxy" not in shared.exec("env", grant=grant).stdout.lower()
    assert Origin.seen == []


def test_43_other_clients(shared: Session, origins: Origins) -> None:
    """Node's `http`, Bash alone, and what is asked without a look at the environment."""
    url = f"http://api.test:{origins.port}"
    result = shared.exec(
        f"""
        node -e "require('http').get('{url}/node', (answer) => answer.pipe(process.stdout))"; echo
        hostport=${{HTTP_PROXY#http://}}
        exec 3<>/dev/tcp/${{hostport%:*}}/${{hostport#*:}}
        printf 'GET {url}/bash HTTP/1.1\\r\\nHost: api.test:{origins.port}\\r\\n\\r\\n' >&3; tail -1 <&3; echo
        curl -sS --noproxy '*' {url}/direct || echo none
        """,
        grant=Grant(network=origins.allow()),
    )
    assert result.stdout.splitlines() == ["GET /node", "GET /bash", "none"], result.stderr


def test_43_a_library(shared: Session, origins: Origins) -> None:
    """ref-43"""
    for name in ("requests", "urllib3", "idna", "certifi", "charset_normalizer"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        shared.put("work/site/", Path(spec.origin).parent)
    code = "import requests, sys; print(*(requests.get(u, timeout=20).text.strip() for u in sys.argv[1:]), sep='|')"
    urls = [
        f"http://api.test:{origins.port}/l",
        f"https://api.test:{origins.tls}/l",
        f"http://other.test:{origins.port}/",
    ]
    result = shared.exec(
        ["python3", "-c", code, *urls],
        grant=Grant(network=origins.allow()),
        env={"PYTHONPATH": "/workspace/work/site", "REQUESTS_CA_BUNDLE": TRUST["SSL_CERT_FILE"]},
    )
    assert result.stdout.startswith("GET /l|GET /l|other.test"), result.stderr


@pytest.mark.parametrize("language", ["python", "node", "bash"])
def test_the_host_adds_credentials_and_speaks_tls(
    shared: Session,
    origins: Origins,
    getters: dict[str, list[str]],
    language: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EGRESS_TOKEN", "t0p-secret-of-host")
    rule = NetworkRule(
        "api.test",
        (origins.tls,),
        methods=("GET",),
        paths=("/v1",),
        inject={"Authorization": "Bearer ${EGRESS_TOKEN}"},
    )
    urls = [f"http://api.test/v1/{language}", "http://api.test/v2", f"https://api.test:{origins.tls}/v1"]
    grant = Grant(network=origins.allow(rule))
    result = shared.exec([*getters[language], *urls], grant=grant, env=TRUST, timeout=60)
    lines = result.stdout.splitlines()
    assert f"GET /v1/{language}" in lines[0], (result.stdout, result.stderr)
    assert "GET /v2 is not allowed at api.test" in lines[1]
    assert "GET /v1" not in lines[2]
    assert Origin.seen == [("GET", f"/v1/{language}", "Bearer t0p-secret-of-host")]
    seen = shared.exec('env; cat /proc/*/environ; ls -R /tmp; cat "$SKILL_BRIDGE"/*', grant=grant).stdout
    assert "HTTP_PROXY" in seen
    assert "t0p" not in seen + json.dumps(list(shared.audit.records))


def test_a_tunnel_is_for_the_host_that_it_was_asked_for(
    shared: Session, origins: Origins, getters: dict[str, list[str]]
) -> None:
    """Behind one address other hosts may stand: what TLS asks for is what the rules have allowed."""
    command = f"curl -sS --connect-to other.test::api.test:{origins.tls} https://%s.test:{origins.tls}/x"
    grant = Grant(network=origins.allow())
    assert shared.exec(command % "api", grant=grant, env=TRUST).stdout == "GET /x"
    refused = shared.exec(command % "other", grant=grant, env=TRUST)
    assert (refused.exit_code, refused.stdout) == (35, ""), refused.stderr
    assert Origin.seen == [("GET", "/x", "None")]
    assert network(shared, refused.run_id)[0]["result"] == "DENIED"


def test_in_scripts_and_code(shared: Session, origins: Origins) -> None:
    url = f"http://api.test:{origins.port}/code"
    python = f"import urllib.request\nurllib.request.urlopen('{url}').read().decode()"
    grant = Grant(network=origins.allow())
    assert shared.execute_code(python, grant=grant).result == "GET /code"
    node = f"export default await (await fetch('{url}')).text();"
    assert shared.execute_code(node, language="node", grant=grant).result == "GET /code"


def test_the_session_bounds_the_network_of_its_runs(executor: Executor, origins: Origins) -> None:
    ports = (origins.port,)
    bound = origins.allow(NetworkRule("api.test", ports, methods=("GET",), upgrade=False))
    wish = origins.allow(NetworkRule("api.test", ports), NetworkRule("other.test", ports))
    command = f"curl -sS http://api.test:{origins.port}/g; curl -sS -d x http://api.test:{origins.port}/p; curl -sS http://other.test:{origins.port}/"
    with executor.session(grant=Grant(network=bound)) as session:
        result = session.exec(command, grant=Grant(network=wish))
        assert result.stdout.startswith("GET /gPOST /p is not allowed at api.test\nother.test"), result.stdout
    with executor.session(grant=Grant()) as session:
        result = session.exec(f"env | grep -i proxy; {command}", grant=Grant(network=wish))
        assert "200" not in result.stdout
        assert "HTTP_PROXY" not in result.stdout
        assert "the session's grant leaves out the network that the run was granted" in result.warnings
    assert [method for method, _, _ in Origin.seen] == ["GET"]


def test_much_both_ways(shared: Session, origins: Origins) -> None:
    url = f"http://api.test:{origins.port}"
    result = shared.exec(
        f"""
        curl -sS {url}/large | tee work/large | sha256sum
        curl -sS --data-binary @work/large {url}/p; echo
        curl -sS -H 'Transfer-Encoding: chunked' --data-binary @work/large http://api.test:{origins.port}/p; echo
        curl -sS --cacert work/ca.pem https://api.test:{origins.tls}/large | sha256sum
        """,
        grant=Grant(network=origins.allow()),
        timeout=60,
    )
    digest = hashlib.sha256(LARGE).hexdigest()
    assert result.stdout.split()[0] == result.stdout.split()[-2] == digest, result.stderr
    assert result.stdout.count(f"{len(LARGE)} bytes\n") == 1
    assert Origin.seen[1] == ("POST", "/p", digest)


# -- hostile ------------------------------------------------------------------------------------------

THIEF = """
import os, socket, sys, time
port, origin = int(sys.argv[1]), sys.argv[2]
def ask():
    s = socket.create_connection(("127.0.0.1", port), 20)
    try:
        s.sendall(b"GET http://%s/stolen HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n" % (origin.encode(), origin.encode()))
        return s.recv(1000)[:15]
    except OSError:
        return b""
print(ask(), flush=True)
if os.fork() == 0:  # a child, and an orphan in a session of its own
    os.setsid()
    print(ask(), flush=True)
    if os.fork() == 0:
        time.sleep(0.1)
        print(ask(), flush=True)
    os._exit(0)
os.wait()
time.sleep(0.5)
"""


def test_another_run_cannot_use_the_port(shared: Session, origins: Origins) -> None:
    shared.put("work/thief.py", THIEF)
    origin = f"api.test:{origins.port}"
    grant = Grant(network=origins.allow())
    owner = shared.start(
        f'echo "${{HTTP_PROXY##*:}}"; read line; python3 work/thief.py "${{HTTP_PROXY##*:}}" {origin}',
        grant=grant,
    )
    port = owner.read(10).stdout.strip()
    for other in (None, Grant(), grant):  # also one that has a port of its own
        result = shared.exec(["python3", "work/thief.py", port, origin], grant=other, timeout=60)
        assert result.stdout.splitlines() == ["b''"] * 3, (result.stdout, result.stderr)
    assert Origin.seen == []
    owner.write("\n")  # the run itself may, and its children; an orphan that left its session may not
    assert owner.wait(30).stdout.splitlines()[1:] == ["b'HTTP/1.1 200 OK'"] * 2 + ["b''"]
    assert shared.exec(["python3", "work/thief.py", port, origin]).exit_code == 1  # nobody listens any more


def test_ten_thousand_connections(shared: Session, origins: Origins) -> None:
    code = """
    import os, resource, socket, time
    port = int(os.environ["HTTP_PROXY"].rpartition(":")[2])
    kept, refused = [], 0
    for number in range(10_000):
        s = socket.socket()
        s.setblocking(False)
        try:
            s.connect(("127.0.0.1", port))
        except BlockingIOError:
            pass
        except OSError:
            refused += 1
        kept.append(s)
        if len(kept) > 900:
            kept.pop(0).close()
    print("made", flush=True)
    time.sleep(60)
    """
    shared.put("work/many.py", textwrap.dedent(code))
    run = shared.start("python3 work/many.py", grant=Grant(network=origins.allow()))
    assert "made" in run.read(60).stdout
    before = time.monotonic()
    other = shared.exec(
        f"tool x; curl -sS http://api.test:{origins.port}/other",
        grant=Grant(network=origins.allow()),
        timeout=60,
    )
    assert (other.stdout, other.stderr.strip()[:21]) == ("GET /other", "tool: Tool not availa"), other.stderr
    assert time.monotonic() - before < 20
    run.kill()
    assert shared.exec("echo well").stdout == "well\n"


def test_a_tunnel_that_stands_still_holds_up_nobody(shared: Session, origins: Origins) -> None:
    code = """
    import os, socket, time
    port, origin = int(os.environ["HTTP_PROXY"].rpartition(":")[2]), os.environ["ORIGIN"].encode()
    kept = []
    for number in range(16):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"GET http://%s/large HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n" % (origin, origin))
        kept.append(s)
    for s in kept:
        assert s.recv(15) == b"HTTP/1.1 200 OK"
    print("stuck", flush=True)
    time.sleep(60)
    """
    shared.put("work/stuck.py", textwrap.dedent(code))
    env = {"ORIGIN": f"api.test:{origins.port}"}
    run = shared.start("python3 work/stuck.py", grant=Grant(network=origins.allow()), env=env)
    assert "stuck" in run.read(30).stdout
    shared.put("work/large", LARGE)
    other = shared.exec(
        f"curl -sS http://api.test:{origins.port}/large | cmp - work/large && echo same; seq 300000 | tail -1",
        grant=Grant(network=origins.allow()),
        timeout=60,
    )
    assert other.stdout == "same\n300000\n", other.stderr
    assert run.running
    run.kill()


def test_49_the_end_of_a_run_ends_what_is_under_way(shared: Session, origins: Origins) -> None:
    """ref-49"""
    code = """
    import os, signal, sys, urllib.request
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    url = "http://" + os.environ["ORIGIN"]
    for path in ("/wait", "/late", "/later"):
        try:
            urllib.request.urlopen(url + path).read()
        except OSError as error:
            print(type(error).__name__, flush=True)
    """
    shared.put("work/late.py", textwrap.dedent(code))
    env = {"ORIGIN": f"api.test:{origins.port}"}
    grant = Grant(network=origins.allow())
    run = shared.start("python3 work/late.py", grant=grant, env=env)
    for _ in range(1500):
        if Origin.seen:
            break
        time.sleep(0.02)
    result = run.kill()
    assert [path for _, path, _ in Origin.seen] == ["/wait"]
    # Its connection ends with its grant, or with its processes, whatever the host hears of first.
    assert {entry["result"] for entry in network(shared, result.run_id)} <= {"REVOKED", "CANCELLED"}


def test_limits_of_a_run(shared: Session, origins: Origins) -> None:
    url = f"http://api.test:{origins.port}"
    grant = Grant(network=origins.allow(), limits=BridgeLimits(requests=3, download=1 << 20))
    result = shared.exec(
        f"curl -sS {url}/large -o work/cut; curl -sS {url}/1; curl -sS {url}/2; curl -sS {url}/3", grant=grant
    )
    assert result.stdout.startswith("GET /1GET /2the run has used all of its 3 requests")
    assert shared.read("work/cut") == b"the answer is larger than 1,048,576 bytes\n"


def test_the_command_line(executor: Executor, skills_root: Path) -> None:
    words = [sys.executable, "-m", "executor.cli", "run", "sales-report", "--skills", str(skills_root)]
    words += ["--runtime", executor.choose_runtime(), "--quiet"]
    shell = "curl -sS http://10.0.0.1/; curl -sS http://other.test/"
    done = subprocess.run([*words, "--allow-net", "10.0.0.1", "--", shell], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "10.0.0.1 leads to an address that is not public",
        "other.test:80 is not allowed to this run",
    ], done
    done = subprocess.run([*words, "--allow-net", "https://x", "--", "true"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (125, "")
    assert "without a scheme" in done.stderr
