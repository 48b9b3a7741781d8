// Host tools for a skill's script: what was granted to this run, and nothing else.
//
//   import { tools, workspace, output } from 'skill-tools';   // or require('skill-tools')
//   await tools.search_docs({ query: 'tax' });
//
// Sent into the sandbox with the run; no dependencies. Every check is made on the host.
'use strict';

const fs = require('node:fs');
const net = require('node:net');
const path = require('node:path');

const REQUEST = 1;
const GIVE_UP = 2;
const PIECE = 1 << 20; // bytes of a file at a time

// `.code` of an error, where it is not the bridge's own word for it.
const CODES = {
  CANCELLED: 'ABORT_ERR',
  NOT_FOUND: 'ENOENT',
  EXISTS: 'EEXIST',
  IS_DIR: 'EISDIR',
  NOT_DIR: 'ENOTDIR',
  NOT_UTF8: 'ERR_ENCODING_INVALID_ENCODED_DATA',
  BAD_PATH: 'EINVAL',
  IO: 'EIO',
};

class SkillBridgeError extends Error {
  constructor(error) {
    super(error.message);
    this.name = error.code === 'CANCELLED' ? 'AbortError' : 'SkillBridgeError';
    this.code = CODES[error.code] || error.code;
    this.bridgeCode = error.code;
    this.details = error.details || [];
    this.retryable = Boolean(error.retryable);
  }
}

const closed = () =>
  new SkillBridgeError({ code: 'REVOKED', message: 'The run is over; its grant was revoked.' });

function folder() {
  if (!process.env.SKILL_BRIDGE) {
    throw new SkillBridgeError({
      code: 'REVOKED',
      message: 'This run has no bridge: nothing was granted to it.',
    });
  }
  return process.env.SKILL_BRIDGE;
}

let known = null;
function settings() {
  if (known === null) {
    try {
      known = JSON.parse(fs.readFileSync(path.join(folder(), 'catalog.json'), 'utf8'));
    } catch (error) {
      throw error instanceof SkillBridgeError ? error : closed();
    }
  }
  return known;
}

// One connection of this process. It does not keep the process alive while nothing is awaited.
class Link {
  constructor() {
    this.waiting = new Map();
    this.numbers = 0;
    this.pieces = [];
    this.size = 0;
    this.broken = false;
    let token;
    try {
      token = fs.readFileSync(path.join(folder(), 'token'));
    } catch (error) {
      throw error instanceof SkillBridgeError ? error : closed();
    }
    this.socket = net.connect({ path: path.join(folder(), 's') });
    this.socket.write(token);
    this.socket.on('data', (data) => this.take(data));
    this.socket.on('error', () => this.end());
    this.socket.on('close', () => this.end());
  }

  end() {
    this.broken = true;
    const waiting = [...this.waiting.values()];
    this.waiting.clear();
    for (const call of waiting) call.reject(closed());
  }

  take(data) {
    this.pieces.push(data);
    this.size += data.length;
    for (;;) {
      if (this.size < 9) return;
      if (this.pieces[0].length < 9) this.pieces = [Buffer.concat(this.pieces)];
      const end = 9 + this.pieces[0].readUInt32BE(5);
      if (this.size < end) return;
      const all = this.pieces.length === 1 ? this.pieces[0] : Buffer.concat(this.pieces);
      this.pieces = all.length > end ? [all.subarray(end)] : [];
      this.size -= end;
      const call = this.waiting.get(all.readUInt32BE(1));
      if (call !== undefined) {
        this.waiting.delete(all.readUInt32BE(1));
        call.answer(JSON.parse(all.toString('utf8', 9, end)));
      }
      if (this.waiting.size === 0) this.socket.unref();
    }
  }

  ask(body, signal) {
    return new Promise((resolve, reject) => {
      const data = Buffer.from(JSON.stringify(body));
      const most = settings().argument;
      if (data.length > most) {
        throw new SkillBridgeError({
          code: 'VALUE_TOO_LARGE',
          message:
            `The request has ${data.length} bytes, at most ${most}. ` +
            'Write the data to a file and pass its path.',
        });
      }
      const number = (this.numbers += 1);
      const head = Buffer.alloc(9);
      head.writeUInt8(REQUEST, 0);
      head.writeUInt32BE(number, 1);
      head.writeUInt32BE(data.length, 5);
      const giveUp = () => {
        if (!this.waiting.delete(number)) return;
        const word = Buffer.alloc(9);
        word.writeUInt8(GIVE_UP, 0);
        word.writeUInt32BE(number, 1);
        this.socket.write(word);
        if (this.waiting.size === 0) this.socket.unref();
        reject(new SkillBridgeError({ code: 'CANCELLED', message: 'The call was given up.' }));
      };
      this.waiting.set(number, {
        reject,
        answer(found) {
          if (signal) signal.removeEventListener('abort', giveUp);
          if (found.ok) resolve(found.value);
          else reject(new SkillBridgeError(found.error));
        },
      });
      this.socket.ref();
      this.socket.write(head);
      this.socket.write(data);
      if (signal) {
        if (signal.aborted) giveUp();
        else signal.addEventListener('abort', giveUp, { once: true });
      }
    });
  }
}

let link = null;
async function ask(method, params, options = {}) {
  if (link === null || link.broken) link = new Link();
  const body = { method, params };
  if (options.timeout !== undefined) body.timeout_ms = Math.max(1, Math.round(options.timeout * 1000));
  return link.ask(body, options.signal);
}

// Names that something else than a script asks an object for. `then` would make it look like a promise.
const NOT_TOOLS = new Set(['then', 'toJSON', ...Object.getOwnPropertyNames(Object.prototype)]);

const own = {
  __proto__: null,
  /** Call a tool by its exact name. */
  call: (name, input = {}, options) => ask('tool.call', { name, input }, options),
  list: (query = '') => ask('tool.list', { query }),
  describe: (name) => ask('tool.describe', { name }),
};

const entryOf = (key) => settings().tools.find((entry) => entry.identifier === key || entry.name === key);

const tools = new Proxy(Object.freeze({ __proto__: null }), {
  get(_target, key) {
    if (typeof key === 'symbol') return undefined;
    if (key in own) return own[key];
    const entry = entryOf(key);
    if (entry !== undefined) return (input, options) => own.call(entry.name, input, options);
    if (NOT_TOOLS.has(key)) return undefined;
    return () =>
      Promise.reject(
        new SkillBridgeError({ code: 'TOOL_NOT_FOUND', message: `Tool not available: ${key}` }),
      );
  },
  has: (_target, key) => typeof key === 'string' && (key in own || entryOf(key) !== undefined),
  ownKeys: () => [],
  set: () => false,
});

const textOf = (content) =>
  typeof content === 'string'
    ? { text: content }
    : { base64: Buffer.from(content.buffer ?? content, content.byteOffset ?? 0, content.byteLength).toString('base64') };

const workspace = Object.freeze({
  readFile: (name) => ask('workspace.read', { path: String(name) }),
  readBytes: async (name, offset = 0, size = PIECE) =>
    Buffer.from((await ask('workspace.read', { path: String(name), offset, size })).base64, 'base64'),
  listFiles: (name = '.') => ask('workspace.list', { path: String(name) }),
  glob: (pattern) => ask('workspace.glob', { pattern }),
  stat: (name) => ask('workspace.stat', { path: String(name) }),
  writeFile: (name, content) => ask('workspace.write', { path: String(name), ...textOf(content) }),
  delete: (name) => ask('workspace.delete', { path: String(name) }),
});

const output = Object.freeze({
  async writeFile(name, content) {
    const parts = String(name).split('/').filter((part) => part !== '' && part !== '.');
    if (parts.length === 0 || parts.includes('..') || String(name).startsWith('/') || String(name).includes('\0')) {
      throw new SkillBridgeError({ code: 'BAD_PATH', message: `${name} is not the name of an output` });
    }
    const where = path.join(process.env.OUTPUT_DIR || '/workspace/out', ...parts);
    await fs.promises.mkdir(path.dirname(where), { recursive: true });
    await fs.promises.writeFile(where, content);
    return where;
  },
});

/** A file of the sandbox as an argument of a tool that takes one. */
const file = (name) => ({ $file: path.resolve(String(name)) });

const log = (message, level = 'info', fields = {}) => ask('log', { message: String(message), level, fields });
const progress = (message = '', fraction = null) => ask('progress', { message: String(message), fraction });

module.exports = { SkillBridgeError, ask, file, log, output, progress, tools, workspace };
