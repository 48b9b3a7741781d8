#!/usr/bin/env bash
# Makes a checkout ready to work in: the virtual environment, and the Debian packages the two runtimes need.
# `dev/setup.sh test` also installs the programs that only the tests use. Run it as often as you like; it does
# nothing when all is there. On other systems it says what to install.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

MCP_CONFORMANCE=0.1.16

begun=$SECONDS
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
say() { printf 'setup: %s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }

# The first Python that is new enough: $PYTHON, that of an earlier run, then what is on the path.
python=""
find_python() {
    local candidate
    for candidate in ${PYTHON:-} .venv/bin/python python3.13 python3.12 python3.11 python3; do
        if have "$candidate" && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            python=$candidate
            return
        fi
    done
}

engine_answers() {
    [ -n "$python" ] && "$python" dev/engine.py status >/dev/null 2>&1
}

# --- Debian packages ------------------------------------------------------------------------------------------

find_python
missing=()
have bwrap || missing+=(bubblewrap)
have mmdebstrap || missing+=(mmdebstrap)
have dockerd || engine_answers || missing+=(docker.io)
if [ "${1:-}" = test ]; then
    have jq || missing+=(jq)
    have ssh || missing+=(openssh-client)
    have gawk || missing+=(gawk)
    have node || missing+=(nodejs)
    # A browser, to see that a report with hostile output stays inert.
    have chromium || missing+=(chromium fonts-dejavu-core)
fi
if have apt-get; then
    if [ -z "$python" ]; then
        missing+=(python3 python3-venv)
    elif ! "$python" -c 'import ensurepip' 2>/dev/null; then
        missing+=(python3-venv)
    fi
fi

install() {
    local log policy=/usr/sbin/policy-rc.d
    log=$(mktemp)
    say "installing ${missing[*]} (output in $log)"
    # The packages must not start services: tests bring up an engine of their own and take it down again.
    if [ ! -e "$policy" ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log"
        say "apt-get failed, its last lines are above"
        exit 1
    fi
    rm -f "$log"
}

if [ ${#missing[@]} -gt 0 ]; then
    if have apt-get && [ "$(id -u)" = 0 ]; then
        install
        find_python
    elif have apt-get; then
        say "not installed: ${missing[*]}. As root: apt-get install ${missing[*]}"
    else
        say "not found: ${missing[*]}. The local runtime needs bubblewrap (Linux only). The container runtime needs a"
        say "Docker engine that answers, at DOCKER_HOST or the default socket. Without mmdebstrap, images are built"
        say "on a registry's Debian."
    fi
fi

# --- Python ---------------------------------------------------------------------------------------------------

if [ -z "$python" ]; then
    say "there is no Python 3.11 or newer. Install one, or name it: PYTHON=/path/to/python3 make setup"
    exit 1
fi
# The extras: the frameworks, which are large, only for the tests. What has all has also what is wanted of it.
extras=dev
[ "${1:-}" != test ] || extras=dev,test
stamp=.venv/.executor-setup
wanted=$(cat pyproject.toml requirements.lock dev/setup.sh | cksum)
found=$(cat "$stamp" 2>/dev/null || true)
if [ -x .venv/bin/python ] && { [ "$found" = "$wanted $extras" ] || [ "$found" = "$wanted dev,test" ]; }; then
    say "ready, $((SECONDS - begun)) s"
    exit 0
fi
if [ ! -x .venv/bin/python ]; then
    say "making .venv with $("$python" --version)"
    "$python" -m venv .venv
fi
say "installing the project and its pinned dependencies into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
    --editable ".[$extras]"
if [ "$extras" != dev ]; then
    say "installing the conformance suite of MCP into .venv"
    PATH=$PWD/.venv/bin:$PATH npm install --prefix .venv/mcp-conformance --no-save --no-audit --no-fund --silent \
        "@modelcontextprotocol/conformance@$MCP_CONFORMANCE"
fi
echo "$wanted $extras" >"$stamp"
say "ready, $((SECONDS - begun)) s"
