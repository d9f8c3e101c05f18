// The form as a request, and as an address that holds it.

import { Fleet } from "./fleet.js";

const USUAL = { gpus: ["64xH100"] };
const VERBS = ["plan", "rent", "estimate", "sweep", "afford"];

const packed = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text))).replaceAll("+", "-").replaceAll("/", "_");
const unpacked = (text) => new TextDecoder().decode(Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0)));

export class Form {
  constructor(form, catalog, changed) {
    this.form = form;
    this.catalog = catalog;
    this.changed = changed;
    this.spec = null;
    this.fleet = new Fleet(form.querySelector("#fleet"), catalog, changed);
    this.usual = new Map(this.controls().map((control) => [control, control.value]));
    this.fill();
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => this.moved(event.target));
    form.querySelector("#add-pool").addEventListener("click", () => { this.fleet.add("64xA100-80"); changed(); });
    form.querySelector("#forget").addEventListener("click", () => { this.model(null); changed(); });
  }

  controls() {
    return [...this.form.querySelectorAll("[data-field]")];
  }

  fill() {
    const options = (id, entries) => this.form.querySelector(id).append(...entries.map(([value, text, chosen]) => new Option(text, value, chosen, chosen)));
    const { catalog } = this;
    this.form.querySelector("#models").append(...catalog.models.map((model) => new Option("", model.name)));
    options("#runtime", catalog.runtimes.map((one) => [one.name, one.name]));
    options("#objective", catalog.objectives.map((one) => [one.name, one.name]));
    for (const id of ["precision", "task", "optimizer", "market", "mixes"]) {
      const control = this.form.querySelector(`#${id}`);
      options(`#${id}`, (catalog.words[id] ?? []).map((word) => [word, word, word === control.dataset.usual]));
      this.usual.set(control, control.value);
    }
  }

  get verb() {
    return this.form.elements.verb.value;
  }

  set verb(name) {
    this.form.elements.verb.value = name;
    this.show();
  }

  show() {
    for (const part of document.querySelectorAll("[data-verbs]")) {
      if (!part.dataset.field) part.hidden = !part.dataset.verbs.split(" ").includes(this.verb);
    }
    for (const range of this.form.querySelectorAll("[data-moves]")) {
      const target = this.form.querySelector(`#${range.dataset.moves}`);
      const number = Number(target.value);
      if (number > 0) range.value = Math.round(Math.log2(number));
      range.setAttribute("aria-valuetext", target.value);
    }
    const model = this.catalog.models.find((one) => one.name === this.value("model"));
    const count = (number) => (number >= 1e12 ? `${(number / 1e12).toPrecision(3)}T` : number >= 1e9 ? `${(number / 1e9).toPrecision(3)}B` : `${(number / 1e6).toPrecision(3)}M`);
    const size = this.spec ? this.spec.report.parameters : model;
    const active = size && size.active !== size.total ? `, ${count(size.active)} active` : "";
    const from = this.spec ? "your config.json: " : "";
    this.form.querySelector("#model-note").textContent = size ? `${from}${count(size.total)} parameters${active}` : "";
    this.form.querySelector("#forget").hidden = !this.spec;
    this.form.querySelector("#model").readOnly = Boolean(this.spec);
  }

  value(id) {
    return this.form.querySelector(`#${id}`).value.trim();
  }

  moved(control) {
    if (control.type === "file") return;
    if (control.dataset.moves) this.form.querySelector(`#${control.dataset.moves}`).value = 2 ** Number(control.value);
    this.show();
    this.changed();
  }

  // A model of a config.json, as /api/import answers it; null for one of the catalog.
  model(spec) {
    this.spec = spec;
    this.form.querySelector("#model").value = spec ? spec.model.name : "llama-2-70b";
    this.show();
  }

  // The fields that a verb takes, only those that say something.
  fields(verb = this.verb) {
    const found = {};
    for (const control of this.controls()) {
      const takes = control.dataset.verbs?.split(" ") ?? VERBS;
      const text = control.value.trim();
      if (!(takes.includes(verb) || (verb === "sweep" && takes.includes("plan"))) || !text) continue;
      const { list, field, usual } = control.dataset;
      if (usual === text) continue;
      const value = list ? text.split(list).map((word) => word.trim()).filter(Boolean) : text;
      if (field.startsWith("money.")) (found.money ??= {})[field.slice(6)] = value;
      else found[field] = /^(top|max_gpus)$/.test(field) && /^\d+$/.test(text) ? Number(text) : value;
    }
    if (this.spec) found.model = this.spec.model;
    if (!["rent", "afford"].includes(verb)) Object.assign(found, this.fleet.fields());
    return found;
  }

  // What the server is sent: the fields, and beside them what is swept.
  asked(verb = this.verb) {
    const { over, ...request } = this.fields(verb);
    return verb === "sweep" ? { request, over: over ?? [] } : request;
  }

  query() {
    const found = new URLSearchParams();
    if (this.verb !== "plan") found.set("verb", this.verb);
    for (const control of this.controls()) {
      const text = control.value.trim();
      if (control.id === "model" ? !this.spec : text !== this.usual.get(control)) found.set(control.id, text);
    }
    if (this.spec) found.set("spec", packed(JSON.stringify(this.spec.model)));
    for (const text of this.fleet.texts()) found.append("pool", text);
    if (this.fleet.between()) found.set("between", this.fleet.between());
    return found.toString().replaceAll("%40", "@").replaceAll("%7E", "~");
  }

  // The form as an address says it; returns the model of one's own that it holds, if any.
  restore(query) {
    const found = new URLSearchParams(query);
    for (const control of this.controls()) control.value = found.get(control.id) ?? this.usual.get(control);
    const pools = found.getAll("pool");
    this.fleet.set(pools.length ? pools.slice(0, 16) : USUAL.gpus);
    this.fleet.joined.value = found.get("between") ?? "";
    this.verb = VERBS.includes(found.get("verb")) ? found.get("verb") : "plan";
    try {
      return found.has("spec") ? JSON.parse(unpacked(found.get("spec"))) : null;
    } catch {
      return null;
    }
  }

  // Mark the control that a sentence is about.
  blame(where) {
    for (const control of this.form.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
    const name = where.split(/[\s:]/)[0];
    const direct = this.controls().find((control) => control.dataset.field === name && !control.closest("[hidden]"));
    const fleet = { gpus: "count", gpu: "gpu", node: "node", cluster: "links", pool: "count", between: "links" }[name.split(".")[0]];
    const control = direct ?? (fleet && this.form.querySelector(`#fleet [data-part=${fleet}]`));
    control?.setAttribute("aria-invalid", "true");
  }
}
