#!/usr/bin/env node
// Convert a table between CSV, TSV, JSON, NDJSON and Markdown. No dependencies, Node 18 or newer.
//
// A table is a list of column names and rows of cells. CSV, TSV, Markdown and NDJSON are read
// piece by piece; JSON is read whole, by tables.mjs, which keeps the order of keys and the exact
// digits of numbers. The result is written beside its final name and moved there when complete.

import { createReadStream, createWriteStream } from "node:fs";
import { mkdir, open, rename, rm, stat } from "node:fs/promises";
import { existsSync, realpathSync, statSync } from "node:fs";
import { basename, dirname, extname, join } from "node:path";
import { once } from "node:events";
import { parseArgs } from "node:util";
import { BadTable, Exact, parseJson, readDelimited, readMarkdown, textOf, writers } from "./tables.mjs";

const OK = 0, USAGE = 2, BAD_INPUT = 3, CANNOT_WRITE = 4;

const EXTENSIONS = {
  ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".json": "json",
  ".ndjson": "ndjson", ".jsonl": "ndjson", ".md": "md", ".markdown": "md",
};
const FORMATS = ["csv", "tsv", "json", "ndjson", "md"];

const HELP = `usage: convert.mjs INPUT --to FORMAT [options]

Convert a table between ${FORMATS.join(", ")}. INPUT is a file, or "-" for stdin.

  --to FORMAT         format of the result (default: by the name given to --output)
  --from FORMAT       format of the input (default: by its name)
  --output FILE       where to write (default: out/<input name>.<format>; "-" is stdout)
  --delimiter CHAR    delimiter of a CSV input (default: ",")
  --infer             CSV, TSV, Markdown to JSON: write numbers, true/false, and null for empty cells
  --lenient           fill short rows and cut long ones instead of stopping
  -h, --help          this text

Exit codes: 0 done, 2 wrong usage, 3 the input is not a table, 4 cannot write.
`;

class Failure extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const shown = (text) => String(text).replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

function settings(argv) {
  let parsed;
  try {
    parsed = parseArgs({
      args: argv,
      allowPositionals: true,
      options: {
        to: { type: "string" }, from: { type: "string" }, output: { type: "string" },
        delimiter: { type: "string" }, infer: { type: "boolean" }, lenient: { type: "boolean" },
        help: { type: "boolean", short: "h" },
      },
    });
  } catch (error) {
    throw new Failure(USAGE, `${error.message.split("\n")[0]} (see --help)`);
  }
  const { values, positionals } = parsed;
  if (values.help) return { help: true };
  if (positionals.length !== 1) throw new Failure(USAGE, `one INPUT is needed, ${positionals.length} given (see --help)`);
  const input = positionals[0];
  const byName = (name) => EXTENSIONS[extname(name ?? "").toLowerCase()];
  const from = values.from ?? byName(input);
  const to = values.to ?? byName(values.output);
  for (const [option, format] of [["--from", from], ["--to", to]]) {
    if (format === undefined) throw new Failure(USAGE, `${option} is needed: one of ${FORMATS.join(", ")}`);
    if (!FORMATS.includes(format)) throw new Failure(USAGE, `${option}: unknown format "${shown(format)}"; one of ${FORMATS.join(", ")}`);
  }
  let delimiter = values.delimiter ?? ",";
  if (delimiter === "tab" || delimiter === "\\t") delimiter = "\t";
  if ([...delimiter].length !== 1 || /["\r\n]/.test(delimiter)) throw new Failure(USAGE, "--delimiter must be one character, not a quote");
  if (from === "tsv") delimiter = "\t";
  const stem = input === "-" ? "table" : basename(input, extname(input));
  const folder = existsSync("out") ? "out" : process.env.OUTPUT_DIR || "out";
  const output = values.output ?? join(folder, `${stem}.${to}`);
  return { input, from, to, output, delimiter, infer: Boolean(values.infer), lenient: Boolean(values.lenient) };
}

// ---------------------------------------------------------------- input

/** Pieces of text; a byte order mark is dropped and bytes that are not UTF-8 are refused. */
async function* textOfFile(input) {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const stream = input === "-" ? process.stdin : createReadStream(input, { highWaterMark: 1 << 18 });
  let offset = 0;
  try {
    for await (const bytes of stream) {
      yield decoder.decode(bytes, { stream: true });
      offset += bytes.length;
    }
    yield decoder.decode();
  } catch (error) {
    if (error instanceof TypeError && /encoded data/i.test(error.message)) {
      throw new Failure(BAD_INPUT, `the input is not UTF-8 (at or after byte ${offset}); convert it first, for example with iconv`);
    }
    throw error;
  }
}

async function* linesOf(pieces) {
  let rest = "";
  for await (const piece of pieces) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) yield line.endsWith("\r") ? line.slice(0, -1) : line;
  }
  if (rest !== "") yield rest;
}

async function allText(input) {
  const pieces = [];
  for await (const piece of textOfFile(input)) pieces.push(piece);
  return pieces.join("");
}

/** Names for columns: none empty, none twice. */
function columnNames(header) {
  const used = new Set();
  return header.map((raw, index) => {
    const name = textOf(raw).trim() || `column_${index + 1}`;
    let unique = name;
    for (let n = 2; used.has(unique); n++) unique = `${name}_${n}`;
    used.add(unique);
    return unique;
  });
}

function inferred(cell) {
  if (cell === "") return null;
  if (cell === "true") return true;
  if (cell === "false") return false;
  // Only what JSON writes the same way: 007, +1 and 1. stay text, and no digit is lost.
  return /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(cell) ? new Exact(cell) : cell;
}

/** Reader for formats with a header row: {columns, rows}, rows produced as the input is read. */
async function fromHeaderRows(source, options, notes) {
  const iterator = source[Symbol.asyncIterator]();
  const first = await iterator.next();
  if (first.done) throw new Failure(BAD_INPUT, "the input holds no table");
  const columns = columnNames(first.value.cells);
  async function* rows() {
    for (let step = await iterator.next(); !step.done; step = await iterator.next()) {
      let { cells, line } = step.value;
      if (cells.length !== columns.length) {
        if (!options.lenient) {
          throw new Failure(BAD_INPUT, `line ${line}: ${cells.length} cells, but there are ${columns.length} columns (--lenient fills and cuts)`);
        }
        notes.mended++;
        cells = columns.map((_, i) => cells[i] ?? "");
      }
      yield options.infer ? cells.map(inferred) : cells;
    }
  }
  return { columns, rows: rows() };
}

function rowOfObject(value, index, columns) {
  if (!(value instanceof Map)) throw new Failure(BAD_INPUT, `row ${index}: expected an object`);
  return columns.map((name) => (value.has(name) ? value.get(name) : null));
}

function unionOfKeys(union, value, index) {
  if (!(value instanceof Map)) throw new Failure(BAD_INPUT, `row ${index}: expected an object`);
  for (const key of value.keys()) union.add(key);
}

async function fromJson(options) {
  const data = parseJson(await allText(options.input));
  if (!Array.isArray(data) || data.length === 0) throw new Failure(BAD_INPUT, "expected a JSON array with at least one row");
  if (Array.isArray(data[0])) {
    async function* arrays() {
      for (const [i, row] of data.entries()) {
        if (!Array.isArray(row)) throw new Failure(BAD_INPUT, `row ${i + 1}: expected an array`);
        yield { cells: row, line: i + 1 };
      }
    }
    return arrays();
  }
  const union = new Set();
  data.forEach((value, i) => unionOfKeys(union, value, i + 1));
  const columns = [...union];
  async function* rows() {
    for (const [i, value] of data.entries()) yield rowOfObject(value, i + 1, columns);
  }
  return { columns, rows: rows() };
}

/** NDJSON names its columns only as it goes, so a file is read twice and stdin is kept. */
async function fromNdjson(options) {
  const kept = options.input === "-" ? await allText("-") : null;
  const source = () => (kept === null ? textOfFile(options.input) : (async function* () { yield kept; })());
  async function* values() {
    let line = 0;
    for await (const text of linesOf(source())) {
      line++;
      if (text.trim() === "") continue;
      let value;
      try {
        value = parseJson(text);
      } catch (error) {
        throw error instanceof BadTable ? new Failure(BAD_INPUT, `line ${line}: ${error.message}`) : error;
      }
      yield { value, line };
    }
  }
  const union = new Set();
  for await (const { value, line } of values()) unionOfKeys(union, value, line);
  if (union.size === 0) throw new Failure(BAD_INPUT, "the input holds no rows");
  const columns = [...union];
  async function* rows() {
    for await (const { value, line } of values()) yield rowOfObject(value, line, columns);
  }
  return { columns, rows: rows() };
}

async function readTable(options, notes) {
  if (options.from === "ndjson") return fromNdjson(options);
  if (options.from === "json") {
    const table = await fromJson(options);
    return table.columns ? table : fromHeaderRows(table, { ...options, infer: false }, notes);
  }
  const source = options.from === "md"
    ? readMarkdown(linesOf(textOfFile(options.input)))
    : readDelimited(textOfFile(options.input), options.delimiter);
  return fromHeaderRows(source, options, notes);
}

// ---------------------------------------------------------------- output

/** Step by step: mkdir's own "recursive" never returns where a folder cannot be made, as below /proc. */
async function makeFolder(folder) {
  if (existsSync(folder)) return;
  if (dirname(folder) !== folder) await makeFolder(dirname(folder));
  await mkdir(folder);
}

async function writeTable(table, options) {
  const toStdout = options.output === "-";
  const part = join(dirname(options.output), `.${basename(options.output)}.${process.pid}.part`);
  let stream = process.stdout;
  if (!toStdout) {
    try {
      await makeFolder(dirname(options.output));
      if (existsSync(options.output) && statSync(options.output).isDirectory()) {
        throw new Error("it is a folder");
      }
      const handle = await open(part, "w");
      stream = createWriteStream(null, { fd: handle.fd, autoClose: false, highWaterMark: 1 << 18 });
      stream.handle = handle; // keeps the descriptor from being collected
    } catch (error) {
      throw new Failure(CANNOT_WRITE, `cannot write ${shown(options.output)}: ${error.message}`);
    }
  }
  let failed = null;
  stream.on("error", (error) => { failed ??= error; });
  const check = () => {
    if (failed) throw new Failure(CANNOT_WRITE, `cannot write ${shown(options.output)}: ${failed.message}`);
  };
  let rows = 0, bytes = 0, pending = "";
  const flush = async () => {
    const chunk = Buffer.from(pending, "utf8");
    pending = "";
    bytes += chunk.length;
    check();
    if (!stream.write(chunk)) await Promise.race([once(stream, "drain"), once(stream, "error").catch(() => {})]).catch(() => {});
    check();
  };
  try {
    const writer = writers[options.to](table.columns);
    pending += writer.start();
    for await (const row of table.rows) {
      pending += writer.row(row, rows++);
      if (pending.length > 1 << 16) await flush();
    }
    pending += writer.end(rows);
    await flush();
    if (!toStdout) {
      await new Promise((resolve) => { stream.end(resolve); stream.on("error", resolve); });
      check();
      await stream.handle.close();
      await rename(part, options.output);
    }
  } catch (error) {
    if (!toStdout) {
      await stream.handle.close().catch(() => {});
      await rm(part, { force: true });
    }
    throw error;
  }
  return { rows, bytes };
}

// ---------------------------------------------------------------- the command

async function main(argv) {
  const options = settings(argv);
  if (options.help) {
    process.stdout.write(HELP);
    return OK;
  }
  const name = shown(options.input === "-" ? "stdin" : options.input);
  if (options.input !== "-") {
    const info = await stat(options.input).catch((error) => {
      throw new Failure(BAD_INPUT, `cannot read ${name}: ${error.code === "ENOENT" ? "no such file" : error.message}`);
    });
    if (info.isDirectory()) throw new Failure(BAD_INPUT, `${name} is a folder`);
    if (options.output !== "-" && existsSync(options.output) && realpathSync(options.output) === realpathSync(options.input)) {
      throw new Failure(USAGE, "the result would overwrite the input; give another --output");
    }
  }
  const notes = { mended: 0 };
  try {
    const table = await readTable(options, notes);
    const { rows, bytes } = await writeTable(table, options);
    const say = options.output === "-" ? process.stderr : process.stdout;
    if (notes.mended) process.stderr.write(`convert.mjs: note: ${notes.mended} row(s) filled or cut to ${table.columns.length} columns\n`);
    say.write(`wrote ${shown(options.output)}: ${rows} rows, ${table.columns.length} columns, ${bytes} bytes (${options.from} to ${options.to})\n`);
  } catch (error) {
    if (error instanceof BadTable) throw new Failure(BAD_INPUT, `${name}: ${error.message}`);
    if (error instanceof Failure && error.code === BAD_INPUT) throw new Failure(BAD_INPUT, `${name}: ${error.message}`);
    throw error;
  }
  return OK;
}

process.stdout.on("error", (error) => { if (error.code === "EPIPE") process.exit(OK); });
main(process.argv.slice(2)).then(
  (code) => { process.exitCode = code; },
  (error) => {
    process.stderr.write(`convert.mjs: ${error instanceof Failure ? shown(error.message) : error.stack}\n`);
    process.exitCode = error instanceof Failure ? error.code : 1;
  },
);
