// Runs a skill's script whose default export is a function of (input, ctx), in JavaScript or TypeScript.
//
// `node runner.mjs SCRIPT ARGS...`. The script is loaded by a real import() (or as the main CommonJS module) from
// its own path: siblings, packages, named exports and top-level constants are what they always are. The value
// goes to the host through the bridge; what is printed stays printed text. A script without such a function has
// done its work when it is loaded.
import fs from 'node:fs';
import Module from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import client from './skill-tools/index.cjs';

const MAX_FILES = 2000;
const MAX_FILE = 1 << 20; // bytes of a bundled text

function readFiles(folder) {
  const found = { __proto__: null };
  let count = 0;
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const walk = (where) => {
    for (const entry of fs.readdirSync(where, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1))) {
      const full = path.join(where, entry.name);
      if (entry.isDirectory()) walk(full);
      else if (entry.isFile() && count < MAX_FILES && fs.statSync(full).size <= MAX_FILE) {
        try {
          found[path.relative(folder, full)] = decoder.decode(fs.readFileSync(full));
          count += 1;
        } catch {
          // not a text
        }
      }
    }
  };
  walk(folder);
  return found;
}

const script = path.resolve(process.argv[2]);
process.argv = [process.argv[0], script, ...process.argv.slice(3)];
const about = JSON.parse(fs.readFileSync(process.env.CONTEXT_JSON, 'utf8'));
const input = JSON.parse(fs.readFileSync(process.env.INPUT_JSON, 'utf8'));
let files = null;
const ctx = {
  skill: about.skill,
  runId: about.run_id,
  tools: client.tools,
  workspace: client.workspace,
  output: client.output,
  get files() {
    files ??= readFiles(process.env.SKILL_DIR);
    return files;
  },
};

async function tell(params) {
  try {
    await client.ask('script.value', params);
  } catch (error) {
    console.error(`the script's result was not taken: ${error.message}`);
    process.exit(1);
  }
}

try {
  let run;
  if (process.env.SKILL_SCRIPT_CODE === '1') {
    const known = JSON.parse(fs.readFileSync(path.join(process.env.SKILL_BRIDGE, 'catalog.json'), 'utf8')).tools;
    for (const { identifier, name } of known)
      globalThis[identifier] = (given, options) => client.tools.call(name, given, options);
    const { tools, workspace, output } = client;
    Object.assign(globalThis, { callTool: tools.call, input, output, tools, workspace });
    const value = (await import(pathToFileURL(script).href)).default;
    await tell({ value: value === undefined ? null : await value });
    process.exit(process.exitCode ?? 0);
  }
  if (process.env.SKILL_SCRIPT_COMMONJS === '1') {
    const loaded = Module._load(script, null, true);
    run = typeof loaded === 'function' ? loaded : loaded?.default;
  } else {
    run = (await import(pathToFileURL(script).href)).default;
    if (run !== null && typeof run === 'object' && typeof run.default === 'function') run = run.default;
  }
  if (typeof run === 'function') {
    const value = await run(input, ctx);
    await tell({ value: value === undefined ? null : value });
    process.exit(process.exitCode ?? 0);
  }
} catch (error) {
  const text = error instanceof Error ? String(error.stack) : String(error);
  console.error(text);
  await tell({
    error: { code: error?.name ?? 'Error', message: String(error?.message ?? error), traceback: text.slice(0, 16000) },
  });
  process.exit(1);
}
