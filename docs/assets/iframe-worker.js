// The search of the site runs in a worker, and browsers start no worker from a file: address. There a hidden frame takes
// the place of the worker: it loads the same script, and messages go through it in both directions.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script");
          script.onload = resolve;
          script.onerror = () => reject(new Error(`cannot load ${source}`));
          script.src = source;
          inner.document.head.append(script);
        });
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      this.ready = load(String(url));
      this.deliver = (data) => inner.dispatchEvent(new MessageEvent("message", { data }));
    }
    postMessage(data) {
      this.ready.then(() => this.deliver(data));
    }
    terminate() {}
  };
}
