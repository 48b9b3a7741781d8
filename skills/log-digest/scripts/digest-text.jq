# digest.json -> a page to read.
def pad($n): tostring | if length < $n then (" " * ($n - length)) + . else . end;
def ranking($title; rows): if (rows | length) == 0 then empty else "", $title, (rows | map("  " + .) | .[]) end;
def pairs: to_entries | map((.value | pad(8)) + "  " + .key);

"Log digest of " + (.sources | join(", ")),
"\(.lines.total) lines: \(.lines.access) access, \(.lines.plain) plain, \(.lines.other) other",
(if .time then "from \(.time.first) to \(.time.last)\(if .time.utc then "" else " (no time zone)" end), \(.time.seconds) s" else "no times found" end),
(if .lines.access > 0 then "\(.bytes) bytes sent to \(.clients) client(s)" else empty end),
ranking("Levels"; .levels | pairs),
ranking("Status"; .statuses | pairs),
ranking("Methods"; .methods | pairs),
ranking("Top messages"; .top_messages | map((.count | pad(8)) + "  " + .level + "  " + .message)),
ranking("Top paths"; .top_paths | map((.count | pad(8)) + "  " + .path + (if .errors > 0 then "  (\(.errors) errors)" else "" end))),
ranking("Not understood, for example"; .unparsed_samples)
