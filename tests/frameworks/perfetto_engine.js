// Perfetto's trace processor, as its web page runs it, between two pipes: each message is four bytes of length, then
// a piece of TraceProcessorRpcStream. The folder with engine_bundle.js is the argument.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const send = (bytes) => {
  const length = Buffer.alloc(4);
  length.writeUInt32LE(bytes.length);
  fs.writeSync(1, Buffer.concat([length, Buffer.from(bytes)]));
};
const port = { postMessage: send, onmessage: null };
// A worker of a browser, as far as the engine looks for one; without Node's own names it takes no other way.
const worker = {
  TextDecoder, TextEncoder, URL, performance, setTimeout, clearTimeout, queueMicrotask, crypto,
  ErrorEvent: class {}, PromiseRejectionEvent: class {}, WorkerGlobalScope: class {},
  console: { log() {}, info() {}, debug() {}, warn: console.error, error: console.error },
  addEventListener() {}, importScripts() {}, postMessage() {},
  location: { href: "http://engine/engine_bundle.js", pathname: "/engine/engine_bundle.js", search: "" },
  // The engine reads its program this way, at once.
  XMLHttpRequest: class {
    open(method, address) { this.file = path.join(folder, path.basename(String(address))); }
    send() { this.response = new Bytes(fs.readFileSync(this.file)); }
  },
};
worker.self = worker;
worker.globalThis = worker;
vm.createContext(worker);
const Bytes = vm.runInContext("Uint8Array", worker); // the engine knows its own world's alone
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);
worker.onmessage({ data: port });

let waiting = Buffer.alloc(0);
process.stdin.on("data", (chunk) => {
  waiting = Buffer.concat([waiting, chunk]);
  while (waiting.length >= 4 && waiting.length >= 4 + waiting.readUInt32LE(0)) {
    const end = 4 + waiting.readUInt32LE(0);
    const message = new Bytes(waiting.subarray(4, end));
    waiting = waiting.subarray(end);
    const hand = () => (port.onmessage ? port.onmessage({ data: message }) : setTimeout(hand, 20));
    hand();
  }
});
