// The formats themselves: text in, cells out, and back. No files, no arguments.

/** The input breaks the rules of its format. */
export class BadTable extends Error {}

/** A JSON number kept as it was written, so that 12345678901234567890 and 1.10 survive. */
export class Exact {
  constructor(digits) { this.digits = digits; }
}

const MAX_DEPTH = 200;

/** JSON text of a value made by parseJson (objects are Maps) or of a cell. */
export function jsonOf(value) {
  if (value instanceof Exact) return value.digits;
  if (value instanceof Map) return `{${[...value].map(([k, v]) => `${JSON.stringify(k)}:${jsonOf(v)}`).join(",")}}`;
  if (Array.isArray(value)) return `[${value.map(jsonOf).join(",")}]`;
  return JSON.stringify(value);
}

/** The text of a cell: nothing for null, JSON for nested values. */
export function textOf(value) {
  if (typeof value === "string") return value;
  return value === null || value === undefined ? "" : jsonOf(value);
}

/**
 * JSON with objects as Maps and numbers as Exact. JSON.parse would move keys such as "2020" in front
 * of all others and round long numbers.
 */
export function parseJson(text) {
  let at = 0;
  if (text.charCodeAt(0) === 0xfeff) at = 1;
  const fail = (what) => {
    const before = text.slice(0, at);
    const line = before.split("\n").length;
    throw new BadTable(`not valid JSON: ${what} at line ${line}, column ${at - before.lastIndexOf("\n")}`);
  };
  const space = /[ \t\r\n]*/y, number = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
  const string = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
  const skip = () => { space.lastIndex = at; space.test(text); at = space.lastIndex; };
  const take = (pattern) => {
    pattern.lastIndex = at;
    const match = pattern.exec(text);
    if (match) at = pattern.lastIndex;
    return match?.[0];
  };
  const key = () => {
    const raw = text[at] === '"' ? take(string) : undefined;
    return raw === undefined ? fail("expected a string") : JSON.parse(raw);
  };
  function value(depth) {
    if (depth > MAX_DEPTH) fail("nested too deeply");
    skip();
    const char = text[at];
    if (char === '"') return key();
    if (char === "{" || char === "[") {
      const close = char === "{" ? "}" : "]";
      const map = new Map(), list = [];
      at++;
      skip();
      if (text[at] === close) { at++; return char === "{" ? map : list; }
      for (;;) {
        if (char === "{") {
          skip();
          const name = key();
          skip();
          if (text[at++] !== ":") { at--; fail('expected ":"'); }
          map.set(name, value(depth + 1));
        } else {
          list.push(value(depth + 1));
        }
        skip();
        if (text[at] === ",") { at++; continue; }
        if (text[at] === close) { at++; return char === "{" ? map : list; }
        fail(`expected "," or "${close}"`);
      }
    }
    for (const [word, meaning] of [["true", true], ["false", false], ["null", null]]) {
      if (text.startsWith(word, at)) { at += word.length; return meaning; }
    }
    const digits = take(number);
    return digits === undefined ? fail("expected a value") : new Exact(digits);
  }
  const result = value(0);
  skip();
  if (at < text.length) fail("text after the end");
  return result;
}

/** RFC 4180 rows from pieces of text: quotes, doubled quotes, and line breaks of any kind inside quotes. */
export async function* readDelimited(pieces, delimiter) {
  let cells = [], cell = "", quoted = false, closed = false, started = false;
  let line = 1, rowLine = 1, returned = false;
  const endRow = () => {
    cells.push(cell);
    const row = { cells, line: rowLine };
    const blank = cells.length === 1 && cell === "" && !closed;
    cells = [], cell = "", closed = false, started = false;
    return blank ? null : row;
  };
  for await (const piece of pieces) {
    let i = 0;
    while (i < piece.length) {
      const char = piece[i];
      if (quoted) {
        const next = piece.indexOf('"', i);
        const stop = next === -1 ? piece.length : next;
        const chunk = piece.slice(i, stop);
        for (let n = chunk.indexOf("\n"); n !== -1; n = chunk.indexOf("\n", n + 1)) line++;
        cell += chunk;
        i = stop;
        if (next !== -1) { quoted = false; closed = true; i++; }
        continue;
      }
      if (returned) { // "\r" ended a row; "\n" right behind it belongs to it
        returned = false;
        if (char === "\n") { i++; continue; }
      }
      if (char === '"' && closed) { cell += '"'; quoted = true; closed = false; i++; continue; }
      if (char === '"' && cell === "" && !closed) { quoted = true; started = true; i++; continue; }
      if (char === delimiter) { cells.push(cell); cell = ""; closed = false; started = true; i++; continue; }
      if (char === "\n" || char === "\r") {
        const row = endRow();
        returned = char === "\r";
        line++;
        rowLine = line;
        if (row) yield row;
        i++;
        continue;
      }
      if (closed) throw new BadTable(`line ${line}: text after a closing quote`);
      if (char === '"') throw new BadTable(`line ${line}: a quote inside an unquoted cell`);
      let stop = i + 1;
      while (stop < piece.length) {
        const c = piece[stop];
        if (c === delimiter || c === "\n" || c === "\r" || c === '"') break;
        stop++;
      }
      cell += piece.slice(i, stop);
      started = true;
      i = stop;
    }
  }
  if (quoted) throw new BadTable(`line ${rowLine}: a quote is opened and never closed`);
  if (started || closed) {
    const row = endRow();
    if (row) yield row;
  }
}

const SEPARATOR = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Cells of one Markdown table line: "\|" is a bar, "<br>" a line break. */
function markdownCells(line) {
  const cells = [];
  let cell = "", text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  let open = true;
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "")) {
      // Kept as a pair until the cell is trimmed, so that an escaped "<" cannot become a line break.
      cell += text[i] + text[++i];
    } else if (text[i] === "|") {
      cells.push(cell);
      cell = "";
      open = i + 1 < text.length;
    } else {
      cell += text[i];
    }
  }
  if (open) cells.push(cell);
  return cells.map((raw) => raw.trim().replace(/\\([!-/:-@[-`{-~])|<br\s*\/?>/gi, (_, escaped) => escaped ?? "\n"));
}

/** The first pipe table of a Markdown document. */
export async function* readMarkdown(lines) {
  let number = 0, previous = null, inside = false;
  for await (const line of lines) {
    number++;
    if (inside) {
      if (line.trim() === "" || !line.includes("|")) return;
      yield { cells: markdownCells(line), line: number };
    } else if (previous !== null && previous.includes("|") && SEPARATOR.test(line)) {
      inside = true;
      yield { cells: markdownCells(previous), line: number - 1 };
    }
    previous = line;
  }
}

function delimited(delimiter) {
  const special = delimiter === "\t" ? /["\t\r\n]/ : /[",\r\n]/;
  const quote = (value) => {
    const text = textOf(value);
    return special.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  // A single empty cell would be a blank line, which readers skip.
  const line = (cells) => (cells.length === 1 && textOf(cells[0]) === "" ? '""' : cells.map(quote).join(delimiter)) + "\r\n";
  return (columns) => ({ start: () => line(columns), row: line, end: () => "" });
}

const markdownText = (value) =>
  textOf(value).replace(/[\\|<`*_[\]~]/g, "\\$&").replace(/\r\n|\r|\n/g, "<br>");

const objectOf = (columns) => {
  const keys = columns.map((name) => JSON.stringify(name));
  return (row) => `{${keys.map((key, i) => `${key}:${jsonOf(row[i] ?? null)}`).join(",")}}`;
};

/** One writer per format: start(), row(cells, index), end(rows) give text. */
export const writers = {
  csv: delimited(","),
  tsv: delimited("\t"),
  json: (columns) => {
    const object = objectOf(columns);
    return { start: () => "[", row: (cells, i) => `${i ? "," : ""}\n  ${object(cells)}`, end: (rows) => (rows ? "\n]\n" : "]\n") };
  },
  ndjson: (columns) => {
    const object = objectOf(columns);
    return { start: () => "", row: (cells) => `${object(cells)}\n`, end: () => "" };
  },
  md: (columns) => {
    const line = (cells) => `| ${cells.map(markdownText).join(" | ")} |\n`;
    return { start: () => line(columns) + `|${" --- |".repeat(columns.length)}\n`, row: line, end: () => "" };
  },
};
