// Pools of GPUs: a row each with how many, of which, in which server, and a network of one's own if wanted.

const GB = 1e9;

function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

export class Fleet {
  constructor(place, catalog, changed) {
    this.place = place;
    this.catalog = catalog;
    this.changed = changed;
    this.made = 0;
    this.joined = document.getElementById("between");
  }

  // GB/s per GPU between pools, where there are several and it is said.
  between() {
    return this.place.children.length > 1 ? this.joined.value.trim() : "";
  }

  // "64xH100-SXM5-80GB@node~50": the number after ~ is GB/s of the network, per GPU.
  set(texts) {
    this.place.replaceChildren();
    for (const text of texts) this.add(text);
  }

  add(text = "64xH100") {
    const found = /^\s*(\d+)\s*x\s*([^@~]+)(?:@([^~]*))?(?:~(.*))?$/i.exec(text) ?? [null, "64", "H100", "", ""];
    this.place.append(this.row(found[1], this.device(found[2].trim()), found[3] ?? "", found[4] ?? ""));
    this.number();
  }

  device(name) {
    const folded = (word) => word.toLowerCase().replace(/[^a-z0-9]/g, "");
    const wanted = folded(name);
    const named = (gpu) => [gpu.name, ...gpu.aliases].map(folded);
    return this.catalog.gpus.find((gpu) => named(gpu).includes(wanted)) ?? this.catalog.gpus.find((gpu) => folded(gpu.name).startsWith(wanted)) ?? this.catalog.gpus[0];
  }

  row(count, gpu, node, network) {
    const key = `pool-${++this.made}`;
    const range = element("input", { type: "range", min: 0, max: 14, value: Math.round(Math.log2(count)) || 0, "data-part": "range" });
    const number = element("input", { id: `${key}-count`, value: count, inputmode: "numeric", "data-part": "count" });
    const names = this.catalog.gpus.map((one) => element("option", { selected: one === gpu }, one.name));
    const type = element("select", { id: `${key}-gpu`, "data-part": "gpu" }, ...names);
    const server = element("select", { id: `${key}-node`, "data-part": "node" });
    const links = element("input", { id: `${key}-links`, value: network, inputmode: "decimal", "data-part": "links" });
    const note = element("p", { class: "note", id: `${key}-note` });
    const remove = element("button", { type: "button", "data-part": "remove" }, "Remove");
    const row = element("div", { class: "pool", role: "group" },
      element("div", { class: "ends" }, element("b", {}), remove),
      element("label", { for: `${key}-count` }, "How many"), element("div", { class: "pair" }, range, number),
      element("label", { for: `${key}-gpu` }, "GPU"), type,
      element("label", { for: `${key}-node` }, "Server"), server, note,
      element("label", { for: `${key}-links` }, "Network of your own, GB/s per GPU"), links);
    server.setAttribute("aria-describedby", note.id);
    row.addEventListener("input", (event) => this.moved(row, event.target));
    remove.addEventListener("click", () => { row.remove(); this.number(); this.changed(); });
    this.servers(row, node);
    return row;
  }

  part(row, name) {
    return row.querySelector(`[data-part=${name}]`);
  }

  servers(row, chosen) {
    const gpu = this.part(row, "gpu").value;
    const holding = this.catalog.nodes.filter((node) => node.gpu === gpu);
    const usual = element("option", { value: "" }, `usual (${this.catalog.usual[gpu]})`);
    const others = holding.map((node) => element("option", { value: node.name, selected: node.name === chosen }, node.name));
    this.part(row, "node").replaceChildren(usual, ...others);
    this.tell(row);
  }

  node(row) {
    const name = this.part(row, "node").value || this.catalog.usual[this.part(row, "gpu").value];
    return this.catalog.nodes.find((node) => node.name === name);
  }

  tell(row) {
    const node = this.node(row);
    const reach = (link) => (link.reach < 1e6 ? `${link.reach} GPUs` : "beyond");
    const words = node ? node.links.map((link) => `${reach(link)}: ${link.kind} ${+(link.bytes_per_s / GB).toPrecision(3)} GB/s`) : [];
    row.querySelector(".note").textContent = node ? `${node.gpus} per server; ${words.join("; ")}` : "";
    const last = node?.links.at(-1);
    this.part(row, "links").placeholder = last ? `${+(last.bytes_per_s / GB).toPrecision(3)}, as above` : "";
  }

  moved(row, control) {
    if (control.dataset.part === "range") this.part(row, "count").value = 2 ** Number(control.value);
    if (control.dataset.part === "count") this.part(row, "range").value = Math.round(Math.log2(Number(control.value))) || 0;
    if (control.dataset.part === "gpu") this.servers(row, "");
    if (control.dataset.part === "node") this.tell(row);
    this.name(row);
  }

  number() {
    const rows = [...this.place.children];
    rows.forEach((row, index) => {
      row.querySelector("b").textContent = `Pool ${index + 1}`;
      row.setAttribute("aria-label", `Pool ${index + 1}`);
      this.part(row, "remove").hidden = rows.length === 1;
      this.part(row, "remove").setAttribute("aria-label", `Remove pool ${index + 1}`);
      this.name(row);
    });
    document.getElementById("between-set").hidden = rows.length < 2;
  }

  name(row) {
    const range = this.part(row, "range");
    range.setAttribute("aria-label", "How many, by powers of two");
    range.setAttribute("aria-valuetext", `${this.part(row, "count").value} GPUs`);
  }

  texts() {
    return [...this.place.children].map((row) => {
      const node = this.part(row, "node").value;
      const links = this.part(row, "links").value.trim();
      return `${this.part(row, "count").value.trim()}x${this.part(row, "gpu").value}${node ? `@${node}` : ""}${links ? `~${links}` : ""}`;
    });
  }

  // Pools by name, or the whole cluster where a network is one's own.
  fields() {
    const texts = this.texts();
    return this.between() || texts.some((text) => text.includes("~")) ? { cluster: this.cluster() } : { gpus: texts };
  }

  cluster() {
    const seen = {};
    const pools = [...this.place.children].map((row) => {
      const device = this.catalog.gpus.find((gpu) => gpu.name === this.part(row, "gpu").value);
      const node = structuredClone(this.node(row));
      const own = this.part(row, "links").value.trim();
      if (own) node.links.at(-1).bytes_per_s = Number(own) * GB;
      seen[device.name] = (seen[device.name] ?? 0) + 1;
      const name = seen[device.name] > 1 ? `${device.name}-${seen[device.name]}` : device.name;
      return { device, node, gpus: Number(this.part(row, "count").value), name };
    });
    if (!this.between()) return { pools };
    // The slowest of the pools' own networks at another speed.
    const outer = pools.map((pool) => pool.node.links.at(-1)).reduce((one, other) => (one.bytes_per_s < other.bytes_per_s ? one : other));
    return { pools, between: { ...outer, bytes_per_s: Number(this.between()) * GB } };
  }
}
