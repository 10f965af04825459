/* A page that is read from a folder may not start a Worker, which search needs. A hidden frame of the
   same page does the same: scripts are loaded into it one after the other, messages go both ways. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.queue = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      const base = new URL(url, document.baseURI);
      const load = (source) => new Promise((loaded, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(source, base);
        script.onload = loaded;
        script.onerror = () => failed(new Error(`${script.src} could not be loaded`));
        inside.document.body.appendChild(script);
      });
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      load(base).then(() => {
        this.inside = inside;
        this.queue.forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      if (!this.inside) {
        this.queue.push(data);
        return;
      }
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
