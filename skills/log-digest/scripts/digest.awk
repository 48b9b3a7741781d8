# One pass over log lines; prints "kind<TAB>key<TAB>count" records at the end.
# Written for mawk 1.3 and gawk alike: no {n} intervals, no gensub, no third argument of match.

function repeat(text, times,   out) { while (times-- > 0) out = out text; return out }

BEGIN {
  max_keys = 200000 # different messages or paths kept; the rest is counted together
  hex = "[0-9a-fA-F]"
  four = repeat(hex, 4)
  uuid = four four "-" four "-" four "-" four "-" four four four
  long_hex = repeat(hex, 12) hex "*"
  split("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec", names, " ")
  for (i = 1; i <= 12; i++) month_number[names[i]] = i
  split("TRACE DEBUG INFO NOTICE WARNING ERROR CRITICAL FATAL ALERT EMERGENCY", known, " ")
  for (i = 1; i <= 10; i++) level_of[known[i]] = known[i]
  level_of["WARN"] = "WARNING"; level_of["ERR"] = "ERROR"; level_of["CRIT"] = "CRITICAL"
  level_of["EMERG"] = "EMERGENCY"; level_of["INFORMATION"] = "INFO"; level_of["SEVERE"] = "ERROR"
  level_of["PANIC"] = "FATAL"
}

function count(kind, key) {
  if (!((kind, key) in counts)) {
    if (kinds[kind] >= max_keys) key = "(other)"
    else kinds[kind]++
  }
  counts[kind, key]++
}

# Variable parts become N, so that the same event counts as one.
function normalise(text) {
  gsub(/\t/, " ", text)
  gsub(uuid, "N", text)
  gsub(/0[xX][0-9a-fA-F]+/, "N", text)
  if (text ~ /[0-9]/) text = hashes(text)
  gsub(/[0-9]+(\.[0-9]+)*/, "N", text)
  gsub(/ +/, " ", text)
  sub(/^ /, "", text); sub(/ $/, "", text)
  if (length(text) > 300) text = substr(text, 1, 297) "..."
  return text
}

# Hex digests and ids: twelve or more hex digits with at least one figure ("deadbeefcafe" stays a word).
function hashes(text,   out, part) {
  out = ""
  while (match(text, long_hex)) {
    part = substr(text, RSTART, RLENGTH)
    out = out substr(text, 1, RSTART - 1) (part ~ /[0-9]/ ? "N" : part)
    text = substr(text, RSTART + RLENGTH)
  }
  return out text
}

function path_of(target) {
  sub(/^[a-zA-Z]+:\/\/[^\/]*/, "", target)
  sub(/[?#].*$/, "", target)
  if (target == "") target = "/"
  return normalise(target)
}

# Days since 1970-01-01 of a civil date.
function days(y, m, d,   era, yoe, doy) {
  y += 0; m += 0; d += 0 # substr gives strings, and "05" <= 2 would compare as text
  if (m <= 2) y--
  era = int(y / 400); yoe = y - era * 400
  doy = int((153 * (m + (m > 2 ? -3 : 9)) + 2) / 5) + d - 1
  return era * 146097 + yoe * 365 + int(yoe / 4) - int(yoe / 100) + doy - 719468
}

function zone_seconds(zone,   s) {
  if (zone == "" || zone == "Z" || zone == "z") return 0
  gsub(/:/, "", zone)
  s = (substr(zone, 2, 2) * 60 + substr(zone, 4, 2)) * 60
  return substr(zone, 1, 1) == "-" ? -s : s
}

# has_zone: times without a zone are kept as they stand and shown without "Z".
function seen_at(seconds, has_zone) {
  timed++
  if (!has_zone) zoneless++
  if (timed == 1 || seconds < first) first = seconds
  if (timed == 1 || seconds > last) last = seconds
}

function access(line,   rest, client, stamp, request, after, parts, target) {
  # client ident user [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 2326 ...
  if (!match(line, /\[[0-3][0-9]\/[A-Z][a-z][a-z]\/[0-9][0-9][0-9][0-9]:[0-9][0-9]:[0-9][0-9]:[0-9][0-9] [+-][0-9][0-9][0-9][0-9]\] "/))
    return 0
  stamp = substr(line, RSTART + 1, 26)
  rest = substr(line, RSTART + RLENGTH)
  client = line; sub(/ .*$/, "", client)
  # The request may hold escaped quotes; the status is what follows the closing one.
  if (!match(rest, /" [1-5][0-9][0-9] ([0-9]+|-)/)) return 0
  request = substr(rest, 1, RSTART - 1)
  after = substr(rest, RSTART + 2, RLENGTH - 2)
  split(after, parts, " ")
  if (!(substr(stamp, 4, 3) in month_number)) return 0
  lines_access++
  count("status", parts[1])
  count("class", substr(parts[1], 1, 1) "xx")
  if (parts[2] != "-") bytes += parts[2]
  if (!((client) in clients)) { if (client_count < max_keys) { clients[client] = 1; client_count++ } }
  seen_at(days(substr(stamp, 8, 4), month_number[substr(stamp, 4, 3)], substr(stamp, 1, 2)) * 86400 \
    + substr(stamp, 13, 2) * 3600 + substr(stamp, 16, 2) * 60 + substr(stamp, 19, 2) - zone_seconds(substr(stamp, 22, 5)), 1)
  if (request ~ /^[A-Z]+ [^ ]/) {
    split(request, parts2, " ")
    target = path_of(parts2[2])
    count("method", parts2[1])
  } else {
    target = "(not an HTTP request)"
    count("method", "(none)")
  }
  count("path", target)
  if (parts[1] >= 400) count("path_error", target)
  return 1
}

function plain(line,   rest, stamp, word, level, seconds, has_time, has_zone, zone) {
  rest = line
  sub(/^[ \[]+/, "", rest)
  has_time = 0
  if (match(rest, /^[12][0-9][0-9][0-9][-\/][01][0-9][-\/][0-3][0-9][T ][0-2][0-9]:[0-5][0-9](:[0-6][0-9])?([.,][0-9]+)?/)) {
    stamp = substr(rest, 1, RLENGTH)
    rest = substr(rest, RLENGTH + 1)
    zone = ""; has_zone = 0
    if (match(rest, /^ ?(Z|[+-][0-2][0-9]:?[0-5][0-9])/)) {
      zone = substr(rest, 1, RLENGTH); sub(/^ /, "", zone)
      rest = substr(rest, RLENGTH + 1); has_zone = 1
    }
    seconds = days(substr(stamp, 1, 4), substr(stamp, 6, 2), substr(stamp, 9, 2)) * 86400 \
      + substr(stamp, 12, 2) * 3600 + substr(stamp, 15, 2) * 60 - zone_seconds(zone)
    if (substr(stamp, 17, 1) == ":") seconds += substr(stamp, 18, 2)
    has_time = 1
  }
  sub(/^[] :|\[<(-]+/, "", rest)
  if (!match(rest, /^[A-Za-z]+/)) return 0
  word = substr(rest, 1, RLENGTH)
  # "error: x" and "[info] x" are levels; "Error in the kitchen" is a sentence.
  if (!(toupper(word) in level_of)) return 0
  rest = substr(rest, RLENGTH + 1)
  if (word != toupper(word) && !has_time && rest !~ /^[]:|>)]/) return 0
  if (rest != "" && rest !~ /^[] :|>)\t,-]/) return 0
  level = level_of[toupper(word)]
  sub(/^[] :|>)\t,-]+/, "", rest)
  lines_plain++
  if (has_time) seen_at(seconds, has_zone)
  count("level", level)
  count("message", level "\t" normalise(rest))
  return 1
}

/^[ ]*$/ { next }

{
  total++
  if (format != "plain" && access($0)) next
  if (format != "access" && plain($0)) next
  other++
  if (other <= 5) samples[other] = length($0) > 200 ? substr($0, 1, 197) "..." : $0
}

END {
  printf "lines\ttotal\t%d\n", total
  printf "lines\taccess\t%d\n", lines_access
  printf "lines\tplain\t%d\n", lines_plain
  printf "lines\tother\t%d\n", other
  if (lines_access) { printf "bytes\t\t%.0f\n", bytes; printf "clients\t\t%d\n", client_count }
  if (timed) {
    printf "time\tfirst\t%.0f\n", first
    printf "time\tlast\t%.0f\n", last
    printf "time\tzoneless\t%d\n", zoneless
  }
  for (i = 1; i <= 5 && i <= other; i++) { line = samples[i]; gsub(/\t/, " ", line); printf "sample\t%s\t1\n", line }
  for (pair in counts) { split(pair, two, SUBSEP); printf "%s\t%s\t%d\n", two[1], two[2], counts[pair] }
}
