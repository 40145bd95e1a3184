/* Browsers start no worker on pages that are opened from the disk. There the worker of the search runs in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame.contentWindow
      window.addEventListener("message", event => {
        if (event.source === this.frame) this.dispatchEvent(new MessageEvent("message", { data: event.data }))
      })
      const script = "self.postMessage = data => parent.postMessage(data, '*')"
      this.frame.document.write(`<script>${script}<\/script><script src="${url}"><\/script>`)
      this.frame.document.close()
      this.ready = new Promise(done => { this.frame.addEventListener("load", done) })  // writing removes listeners
    }
    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
