// Ordinary Node work. Everything here must go on working, however tight the sandbox becomes.

const child = require("child_process");
const crypto = require("crypto");
const dns = require("dns");
const fs = require("fs");
const http = require("http");
const net = require("net");
const os = require("os");
const path = require("path");
const { pipeline } = require("stream/promises");
const { Worker } = require("worker_threads");
const zlib = require("zlib");

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "node-"));
const once = (thing, event) => new Promise((done, fail) => thing.once(event, done).once("error", fail));
const listen = (server) => new Promise((done) => server.listen(0, "127.0.0.1", () => done(server.address().port)));

const WORK = {
  async worker() {
    const worker = new Worker('require("worker_threads").parentPort.postMessage(6 * 7)', { eval: true });
    return (await once(worker, "message")) === 42;
  },
  async workers_share_memory() {
    const shared = new SharedArrayBuffer(4);
    const code = 'Atomics.add(new Int32Array(require("worker_threads").workerData), 0, 5)';
    await Promise.all([1, 2, 3].map(() => once(new Worker(code, { eval: true, workerData: shared }), "exit")));
    return new Int32Array(shared)[0] === 15;
  },
  async child_exec() {
    return child.execSync("echo $((6*7))").toString() === "42\n";
  },
  async child_spawn() {
    const cat = child.spawn("cat");
    cat.stdin.end("through");
    let said = "";
    for await (const piece of cat.stdout) said += piece;
    return said === "through";
  },
  async child_fork() {
    const file = path.join(folder, "child.js");
    fs.writeFileSync(file, 'process.on("message", (m) => { process.send(m * 2); process.disconnect(); })');
    const forked = child.fork(file);
    forked.send(21);
    return (await once(forked, "message")) === 42;
  },
  async child_timeout() {
    const done = child.spawnSync("sleep", ["30"], { timeout: 200 });
    return done.signal === "SIGTERM";
  },
  async streams() {
    const from = path.join(folder, "a");
    fs.writeFileSync(from, "x".repeat(100000));
    await pipeline(fs.createReadStream(from), zlib.createGzip(), fs.createWriteStream(from + ".gz"));
    return zlib.gunzipSync(fs.readFileSync(from + ".gz")).length === 100000;
  },
  async fetch_loopback() {
    const server = http.createServer((_, answer) => answer.end("fetched"));
    const port = await listen(server);
    const said = await (await fetch(`http://localhost:${port}/`)).text();
    server.closeAllConnections();
    server.close();
    return said === "fetched";
  },
  async socket() {
    const server = net.createServer((peer) => peer.end("hello"));
    const client = net.connect(await listen(server), "127.0.0.1");
    let said = "";
    for await (const piece of client) said += piece;
    server.close();
    return said === "hello";
  },
  async unix_socket() {
    const name = path.join(folder, "s");
    const server = net.createServer((peer) => peer.end("hello"));
    await new Promise((done) => server.listen(name, done));
    let said = "";
    for await (const piece of net.connect(name)) said += piece;
    server.close();
    return said === "hello";
  },
  async file_watcher() {
    const watcher = fs.watch(folder);
    const seen = once(watcher, "change");
    setTimeout(() => fs.writeFileSync(path.join(folder, "watched"), "x"), 20);
    await seen;
    watcher.close();
    return true;
  },
  async files() {
    await fs.promises.mkdir(path.join(folder, "b/c"), { recursive: true });
    await fs.promises.copyFile(path.join(folder, "a"), path.join(folder, "b/c/a"));
    await fs.promises.symlink("c", path.join(folder, "b/l"));
    const names = await fs.promises.readdir(path.join(folder, "b"));
    await fs.promises.rm(path.join(folder, "b"), { recursive: true });
    return names.sort().join() === "c,l";
  },
  async web_assembly() {
    return new WebAssembly.Module(Buffer.from("0061736d01000000", "hex")) instanceof WebAssembly.Module;
  },
  async crypto() {
    const key = await new Promise((done) => crypto.scrypt("word", "salt", 32, (_, made) => done(made)));
    return key.length === 32 && crypto.randomUUID().length === 36;
  },
  async just_in_time() {
    let sum = 0;
    for (let number = 0; number < 3e6; number++) sum = (sum + number * number) % 1000003;
    return Number.isInteger(sum);
  },
  async machine() {
    return os.cpus().length > 0 && process.getuid() > 0 && os.networkInterfaces().lo && fs.existsSync(os.homedir());
  },
  async signals() {
    const got = once(process, "SIGUSR2");
    process.kill(process.pid, "SIGUSR2");
    await got;
    return true;
  },
  async names() {
    return (await dns.promises.lookup("localhost")).address.length > 0;
  },
};

(async () => {
  for (const [name, work] of Object.entries(WORK)) {
    let ok = false;
    let detail = "";
    try {
      ok = (await work()) === true;
    } catch (error) {
      detail = String(error).split("\n")[0];
    }
    console.log("CHECK", name, ok ? "OK" : "BAD", detail);
  }
  process.exit(0);
})();
