// Perfetto's trace processor as its web page runs it, over pipes: what is read from standard input
// goes to it as requests (TraceProcessorRpcStream), and its answers go to standard output.
// Argument: the folder of the page's files. Its worker expects a browser: what it asks of one is
// here.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const answers = [];
const write = (data) => {
  for (let at = 0; at < data.length; ) at += fs.writeSync(1, data, at);
};

class XMLHttpRequest {
  open(_method, file) {
    this.file = file;
  }
  send() {
    const data = fs.readFileSync(path.join(folder, path.basename(this.file)));
    this.response = new Uint8Array(data).buffer;
  }
}

Object.assign(globalThis, {
  self: globalThis,
  WorkerGlobalScope: class {},
  location: { href: "http://localhost/engine_bundle.js", protocol: "http:", host: "localhost" },
  XMLHttpRequest,
  process: undefined, // or the worker takes this for no browser
});
console.log = console.warn = console.error; // standard output is for answers
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));

const port = { postMessage: (answer) => answers.push(answer) };
setImmediate(() => {
  globalThis.onmessage({ data: port });
  const piece = Buffer.alloc(1 << 20);
  for (let size; (size = fs.readSync(0, piece)) > 0; ) {
    port.onmessage({ data: new Uint8Array(piece.subarray(0, size)) });
    answers.splice(0).forEach(write);
  }
});
