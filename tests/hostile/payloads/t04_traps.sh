# Signals at a script's own processes do what they do everywhere: nothing is ignored that was not told to be.
say() { [ "$2" = "$3" ] && echo "CHECK $1 OK $2" || echo "CHECK $1 BAD got '$2', want '$3'"; }

say term-ends "$(bash -c 'kill -TERM $$; echo survived'; echo $?)" 143
say int-ends "$(bash -c 'kill -INT $$; echo survived'; echo $?)" 130
say pipe-ends "$(bash -c 'kill -PIPE $$; echo survived'; echo $?)" 141
say hup-ends "$(bash -c 'kill -HUP $$; echo survived'; echo $?)" 129
say trap-int "$(bash -c 'trap "echo trapped; exit 0" INT; kill -INT $$; sleep 1')" trapped
say trap-term "$(bash -c 'trap "echo trapped; exit 0" TERM; kill -TERM $$; sleep 1')" trapped
say trap-usr1 "$(bash -c 'trap "echo trapped" USR1; kill -USR1 $$')" trapped
say broken-pipe "$(bash -c 'yes | head -1; echo ${PIPESTATUS[0]}' | tail -1)" 141
say keyboard-interrupt "$(python3 -c '
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")')" interrupted
say nothing-ignored "$(python3 -S -c '
import signal
print([n for n in range(1, 65) if n not in (13, 25, 32, 33) and signal.getsignal(n) == signal.SIG_IGN])')" "[]"
say nothing-blocked "$(grep SigBlk /proc/self/status | tr -d '\t')" SigBlk:0000000000000000
