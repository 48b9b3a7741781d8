# Ordinary shell work. Everything here must go on working, however tight the sandbox becomes.
folder=$(mktemp -d) && cd "$folder" || exit 1

# work NAME WANTED: the function of that name prints what is wanted and succeeds.
work() {
    local said
    if said=$("$1" 2>&1) && [ "$said" = "$2" ]; then echo "CHECK $1 OK"; else echo "CHECK $1 BAD '${said//$'\n'/ }'"; fi
}

pipes() { set -o pipefail; seq 1000 | sort -rn | head -1000 | tail -1 | awk '{print $1 * 42}'; }
here_document() { cat <<END
$((6 * 7))
END
}
here_string() { tr a-z A-Z <<<"shout"; }
process_substitution() { diff <(seq 3) <(seq 3) && paste -sd+ <(seq 3) | bc; }
output_substitution() { seq 5 | tee >(wc -l >lines) >/dev/null; sleep 0.3; tr -d ' ' <lines; }
background() { (sleep 0.1; echo late) & wait $!; }
coprocess() { coproc bc; echo "6*7" >&"${COPROC[1]}"; read -r answer <&"${COPROC[0]}"; echo "$answer"; }
traps() { bash -c 'trap "echo bye" EXIT; exit 0'; }
arrays() { local -A map=([a]=1 [b]=2); echo "${#map[@]} ${map[b]}"; }
loops() { for i in {1..3}; do printf '%s' "$i"; done; echo; }
find_and_xargs() { touch x1 x2 x3; find . -name 'x*' -print0 | xargs -0 -n1 basename | sort | paste -sd,; }
text_tools() { printf 'b 2\na 1\n' | sort | cut -d' ' -f2 | sed 's/^/n/' | grep -c n; }
dates() { TZ=UTC date -d @0 +%Y; }
git_repository() {
    git init -q repo && cd repo && git config user.email a@b && git config user.name n &&
        echo one >file && git add file && git commit -qm first && echo two >>file && git commit -qam second &&
        git checkout -qb other HEAD~1 && git log --oneline | wc -l && git diff --shortstat other master 2>/dev/null |
        cut -d, -f2 || git diff --shortstat other main | cut -d, -f2
}
git_clone() { git clone -q repo copy && git -C copy rev-parse --is-inside-work-tree; }
tar_files() { echo x >in && tar czf a.tgz in && tar cJf a.txz in && tar tzf a.tgz && tar xOJf a.txz; }
zip_files() { echo x >in && zip -q a.zip in && unzip -p a.zip; }
jq_program() { echo '{"a":[1,2,39]}' | jq '.a | add'; }
perl_program() { perl -MList::Util=sum -e 'print sum(1..8) + 6, "\n"'; }
python_program() { python -c 'print(6 * 7)' && python3 - <<<'print(6 * 7)'; }
node_program() { node -e 'console.log(6 * 7)'; }
curl_loopback() {
    echo served >page
    python3 -m http.server 18765 --bind 127.0.0.1 >/dev/null 2>&1 &
    for _ in $(seq 50); do curl -sf http://localhost:18765/page && break; sleep 0.1; done
    kill $!
}
fifo() { mkfifo pipe; (echo through >pipe &); cat pipe; }
file_lock() { (flock -n 9 && echo locked) 9>lock; }
timeouts() { timeout 0.2 sleep 30; echo $?; }
permissions() { umask; touch new; chmod 640 new; stat -c %a new; }
own_limits() { (ulimit -n 64; ulimit -n); }
terminal() { script -qec 'test -t 0 && echo tty' /dev/null </dev/null | tr -d '\r'; }
who() { [ "$(id -u)" -gt 0 ] && [ -n "$USER" ] && [ -w "$HOME" ] && echo ok; }
shebang() { printf '#!/usr/bin/env python3\nprint(42)\n' >program; chmod +x program; ./program; }
hashes() { printf '' | sha256sum | cut -c1-8; }

work pipes 42
work here_document 42
work here_string SHOUT
work process_substitution 6
work output_substitution 5
work background late
work coprocess 42
work traps bye
work arrays "2 2"
work loops 123
work find_and_xargs x1,x2,x3
work text_tools 2
work dates 1970
work git_repository "1
 1 insertion(+)"
work git_clone true
work tar_files "in
x"
work zip_files x
work jq_program 42
work perl_program 42
work python_program "42
42"
work node_program 42
work curl_loopback served
work fifo through
work file_lock locked
work timeouts 124
work permissions "0022
640"
work own_limits 64
work terminal tty
work who ok
work shebang 42
work hashes e3b0c442
