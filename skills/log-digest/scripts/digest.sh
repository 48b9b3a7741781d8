#!/usr/bin/env bash
# Digest a log: what happened, how often, and when. Writes digest.json and digest.txt.
# Reads common/combined access logs and plain "LEVEL message" logs, mixed if need be.
# Needs bash, awk (mawk or gawk), jq and coreutils. One pass; memory depends on the number
# of different (normalised) messages and paths, not on the number of lines.
set -euo pipefail
export LC_ALL=C # bytes, and the same order everywhere

readonly EXIT_USAGE=2 EXIT_BAD_INPUT=3 EXIT_CANNOT_WRITE=4
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
readonly here

usage() {
  cat <<'TEXT'
usage: digest.sh [--top N] [--format auto|access|plain] [--out DIR] [--] [FILE ...]

Digest log files, or stdin when there is no FILE or FILE is "-".

  --top N        entries in each ranking (default 10, at most 1000)
  --format F     auto (default) decides line by line; access or plain forces one
  --out DIR      folder for digest.json and digest.txt (default: out)
  -h, --help     this text

A FILE that begins with a dash goes after "--".
Exit codes: 0 done, 2 wrong usage, 3 no readable log lines, 4 cannot write.
TEXT
}

fail() { # CODE MESSAGE
  printf 'digest.sh: %s\n' "$2" >&2
  exit "$1"
}

top=10 format=auto out='' files=()
while (($#)); do
  case $1 in
    --top | --format | --out)
      (($# >= 2)) || fail $EXIT_USAGE "$1 needs a value (see --help)"
      case $1 in
        --top) top=$2 ;;
        --format) format=$2 ;;
        --out) out=$2 ;;
      esac
      shift 2
      ;;
    --top=* | --format=* | --out=*)
      option=${1%%=*} value=${1#*=}
      shift
      set -- "$option" "$value" "$@"
      ;;
    -h | --help) usage && exit 0 ;;
    --) shift && files+=("$@") && break ;;
    -) files+=(-) && shift ;;
    -*) fail $EXIT_USAGE "unknown option: $1 (see --help; put -- in front of file names that begin with a dash)" ;;
    *) files+=("$1") && shift ;;
  esac
done
[[ $top =~ ^[1-9][0-9]{0,3}$ ]] && ((top <= 1000)) || fail $EXIT_USAGE "--top must be a number from 1 to 1000"
[[ $format == auto || $format == access || $format == plain ]] || fail $EXIT_USAGE "--format must be auto, access or plain"
((${#files[@]})) || files=(-)
for tool in awk jq sort tr mktemp; do
  command -v "$tool" >/dev/null || fail $EXIT_CANNOT_WRITE "the tool '$tool' is missing"
done
for file in "${files[@]}"; do
  [[ $file == - ]] && continue
  [[ -e $file ]] || fail $EXIT_BAD_INPUT "no such file: $file"
  [[ ! -d $file ]] || fail $EXIT_BAD_INPUT "this is a folder, not a file: $file"
  [[ -r $file ]] || fail $EXIT_BAD_INPUT "cannot read: $file"
done

if [[ -z $out ]]; then
  if [[ -d out ]]; then out=out; else out=${OUTPUT_DIR:-out}; fi
fi
[[ $out == -* ]] && out=./$out
mkdir -p -- "$out" 2>/dev/null && [[ -w $out ]] || fail $EXIT_CANNOT_WRITE "cannot write to the folder: $out"

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

# Names never reach awk: a file called "a=b" would be an assignment there.
read_all() {
  local file
  for file in "${files[@]}"; do
    if [[ $file == - ]]; then cat; else cat <"$file"; fi
    printf '\n' # a last line without a newline must not run into the next file
  done
}

# Control characters would reach terminals through digest.txt; tabs separate the counts below.
read_all | tr -d '\000\r' | tr '\001-\010\013-\037\177' '?' |
  awk -v format="$format" -f "$here/digest.awk" >"$scratch/counts"

names=()
for file in "${files[@]}"; do
  if [[ $file == - ]]; then names+=(stdin); else names+=("${file##*/}"); fi
done

jq -n -R --argjson top "$top" --args -f "$here/digest.jq" -- "${names[@]}" <"$scratch/counts" >"$scratch/digest.json"
jq -e '.lines.parsed > 0' "$scratch/digest.json" >/dev/null ||
  fail $EXIT_BAD_INPUT "no line looks like an access log or a 'LEVEL message' log ($(jq '.lines.total' "$scratch/digest.json") lines read)"
jq -r -f "$here/digest-text.jq" "$scratch/digest.json" >"$scratch/digest.txt"

cp -- "$scratch/digest.json" "$scratch/digest.txt" "$out/" || fail $EXIT_CANNOT_WRITE "cannot write to the folder: $out"
cat -- "$scratch/digest.txt"
printf '\nwrote %s/digest.json, %s/digest.txt\n' "$out" "$out"
