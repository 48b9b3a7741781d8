# Counts (see digest.awk) -> digest.json. The key may itself hold a tab: "message<TAB>LEVEL<TAB>text<TAB>count".
def table($all; $kind): [$all[] | select(.kind == $kind) | {key, count}] | sort_by(-.count, .key);
def numbers($all; $kind): table($all; $kind) | map({(.key): .count}) | add // {};
def iso($zoneless): todate | if $zoneless then rtrimstr("Z") else . end;

[inputs | split("\t") | {kind: .[0], key: (.[1:-1] | join("\t")), count: (.[-1] | tonumber)}] as $all
| numbers($all; "lines") as $lines
| numbers($all; "time") as $time
| (table($all; "path_error") | map({key, value: .count}) | from_entries) as $errors
| {
    sources: $ARGS.positional,
    lines: {total: $lines.total, parsed: ($lines.access + $lines.plain), access: $lines.access, plain: $lines.plain, other: $lines.other},
    time: (if $time.first == null then null else
      ($time.zoneless > 0) as $z
      | {first: ($time.first | iso($z)), last: ($time.last | iso($z)), seconds: ($time.last - $time.first), utc: ($z | not)} end),
    levels: numbers($all; "level"),
    top_messages: (table($all; "message")[:$top] | map((.key | index("\t")) as $cut | {level: .key[:$cut], message: .key[$cut + 1:], count})),
    statuses: numbers($all; "status"),
    status_classes: numbers($all; "class"),
    methods: numbers($all; "method"),
    top_paths: (table($all; "path")[:$top] | map({path: .key, count, errors: ($errors[.key] // 0)})),
    bytes: (numbers($all; "bytes")[""]),
    clients: (numbers($all; "clients")[""]),
    unparsed_samples: [$all[] | select(.kind == "sample") | .key]
  }
