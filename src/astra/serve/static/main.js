// The page: whenever the form says something else, the answer is asked for again, and what is outdated is given up.

import { Refusal, keep, offered, post } from "./api.js";
import { Form } from "./form.js";

const place = (id) => document.getElementById(id);
const WAIT_MS = { plan: 120, estimate: 120, rent: 400, sweep: 400, afford: 400 };
let form, timer, asking, drawing, pinned;

const quiet = (error) => {
  if (error.name === "AbortError") return;
  fail(error);
};

function fail(error) {
  place("error").textContent = error instanceof Refusal ? error.message : `The server does not answer (${error.message}).`;
  place("error").hidden = false;
  place("status").textContent = "";
  place("result").classList.add("stale");
  form?.blame(error.where ?? "");
}

function changed() {
  clearTimeout(timer);
  asking?.abort();
  timer = setTimeout(ask, WAIT_MS[form.verb]);
}

async function ask() {
  clearTimeout(timer);
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const verb = form.verb;
  history.replaceState(null, "", `?${form.query()}${location.hash}`);
  place("result").setAttribute("aria-busy", "true");
  try {
    const html = await (await post("view", { verb, request: form.asked() }, signal)).text();
    if (signal.aborted) return;
    show(html);
  } catch (error) {
    quiet(error);
  } finally {
    if (asking.signal === signal) place("result").removeAttribute("aria-busy");
  }
}

function show(html) {
  const result = place("result");
  const open = new Map([...result.querySelectorAll("article > details")].map((one) => [one.parentElement.id, one.open]));
  place("error").hidden = true;
  result.classList.remove("stale");
  form.blame("");
  result.innerHTML = html;
  for (const one of result.querySelectorAll("article > details")) {
    if (open.has(one.parentElement.id)) one.open = open.get(one.parentElement.id);
  }
  shown();
}

// What goes with the answer that is on the page now.
function shown() {
  const result = place("result");
  const cards = [...result.querySelectorAll("article[data-pick]")];
  place("pick").replaceChildren(...cards.map((card) => new Option(`#${card.dataset.pick}`, card.dataset.pick)));
  place("keep").hidden = form.verb === "estimate";
  for (const button of result.querySelectorAll("[data-do=explain]")) button.hidden = form.verb !== "plan";
  tell();
  mark();
  drawing?.abort();
  drawing = new AbortController();
  for (const one of result.querySelectorAll("article > details[open]")) draw(one);
}

function tell() {
  const card = place("result").querySelector("article");
  const figure = (name) => [...(card?.querySelectorAll("dt") ?? [])].find((term) => term.textContent === name)?.nextElementSibling.firstChild.textContent;
  const title = place("answer-title")?.textContent ?? "";
  const said = place("answer-title")?.dataset.said ?? (form.verb === "rent"
    ? `${place("result").querySelectorAll("article").length} choices`
    : card ? `${figure("step time")} per step, ${figure("tokens per second")} tokens per second, MFU ${figure("MFU")}` : "no plan");
  place("status").textContent = `${title}: ${said}.`;
  place("status").classList.add("said");
  document.title = `${title} · Astra`;
}

// What estimates take of the request, with the strategy of a card.
function strategyOf(card) {
  return { ...form.fields("estimate"), strategy: card.dataset.strategy };
}

async function draw(details) {
  const target = details.querySelector(".timeline");
  if (!target || target.dataset.drawn) return;
  target.dataset.drawn = "yes";
  const { signal } = drawing;
  try {
    const svg = await (await post("trace", strategyOf(details.parentElement), signal)).text();
    if (signal.aborted) return;
    target.innerHTML = `<div class="wide" tabindex="0" role="region" aria-label="The simulated step">${svg}</div>`;
  } catch (error) {
    if (error.name !== "AbortError") target.textContent = error.message;
  }
}

function mark() {
  for (const button of place("result").querySelectorAll("[data-do=compare]")) {
    const card = button.closest("article");
    const same = pinned && JSON.stringify(strategyOf(card)) === pinned.key;
    button.setAttribute("aria-pressed", String(Boolean(same)));
    button.textContent = pinned && !same ? "Compare with A" : same ? "A" : "Compare";
    button.setAttribute("aria-label", `${button.textContent}: plan ${card.dataset.pick}`);
  }
  const note = place("pinned");
  note.hidden = !pinned;
  if (!pinned) {
    place("compared").hidden = true;
    return;
  }
  const clear = document.createElement("button");
  clear.type = "button";
  clear.textContent = "Stop comparing";
  clear.addEventListener("click", () => { pinned = null; mark(); });
  const words = document.createElement("span");
  words.textContent = `A is ${pinned.name}. Choose another plan, after changing anything if you like, to compare it with A.`;
  note.replaceChildren(words, clear);
}

async function compare(card) {
  const request = strategyOf(card);
  const key = JSON.stringify(request);
  if (!pinned || pinned.key === key) {
    pinned = pinned ? null : { key, request, name: `${card.querySelector("h3").textContent.trim()} (${place("answer-title").textContent})` };
    mark();
    return;
  }
  const html = await (await post("view", { verb: "compare", request: { first: pinned.request, second: request } })).text();
  place("compared").innerHTML = html;
  place("compared").hidden = false;
  place("compared").focus();
  place("compared").scrollIntoView({ block: "start" });
}

// Why a plan is as it is: changes are planned anew, which takes seconds.
async function explain(button) {
  const card = button.closest("article");
  button.disabled = true;
  button.textContent = "Planning changes …";
  try {
    const body = { verb: "explain", request: { request: form.fields("plan"), pick: Number(card.dataset.pick) } };
    place("compared").innerHTML = await (await post("view", body)).text();
    place("compared").hidden = false;
    place("compared").focus();
    place("compared").scrollIntoView({ block: "start" });
  } finally {
    button.disabled = false;
    button.textContent = "Why?";
  }
}

const DO = {
  explain,
  compare: (button) => compare(button.closest("article")),
  edit: async (button) => {
    place("strategy").value = button.closest("article").dataset.strategy;
    form.verb = "estimate";
    await ask();
    place("strategy").focus();
  },
  plan: async (button) => {
    form.fleet.set(button.dataset.gpus.split(" + "));
    for (const id of ["objective", "budget", "deadline"]) place(id).value = "";
    form.verb = "plan";
    history.replaceState(null, "", location.pathname);
    await ask();
    place("answer").focus();
  },
};

const KEEP = {
  report: () => keep("report", { verb: form.verb, request: form.fields() }, "report.html"),
  record: () => keep(form.verb, form.asked(), `${form.verb}.json`),
  export: () => keep("export", { request: form.fields(), target: place("target").value, pick: Number(place("pick").value), nearest: place("nearest").checked }, "plan.zip"),
};

async function press(event) {
  const button = event.target.closest("button[data-do],button[data-keep]");
  if (!button) return;
  try {
    await (button.dataset.do ? DO[button.dataset.do](button) : KEEP[button.dataset.keep]());
    if (button.dataset.keep) place("error").hidden = true;
  } catch (error) {
    quiet(error);
    place("error").scrollIntoView({ block: "nearest" });
  }
}

async function take(file) {
  if (!file) return;
  try {
    const text = await file.text();
    form.model(await (await post("import", { text, name: file.name })).json());
    changed();
  } catch (error) {
    quiet(error);
  }
}

function point(event) {
  const link = event.target.closest?.("svg a");
  if (link && place("pointed")) place("pointed").textContent = link.getAttribute("aria-label");
}

function listen() {
  const main = place("answer");
  main.addEventListener("click", press);
  main.addEventListener("toggle", (event) => { if (event.target.open && event.target.parentElement.matches("article")) draw(event.target); }, true);
  main.addEventListener("mouseover", point);
  main.addEventListener("focusin", point);
  place("config").addEventListener("change", (event) => take(event.target.files[0]));
  const over = (on) => (event) => { event.preventDefault(); place("drop").classList.toggle("over", on); };
  document.addEventListener("dragover", over(true));
  document.addEventListener("dragleave", over(false));
  document.addEventListener("drop", (event) => { over(false)(event); take(event.dataTransfer.files[0]); });
}

async function open(query) {
  const spec = form.restore(query);
  if (spec) form.model({ model: spec, report: { parameters: null } });
  else form.spec = null;
  form.show();
  if (brought()) {
    history.replaceState(null, "", `?${form.query()}${location.hash}`);
    shown();
  } else await ask();
}

// Whether the page came with the answer to what its form asks.
function brought() {
  const { asked } = place("result").dataset;
  delete place("result").dataset.asked;
  return asked === JSON.stringify({ verb: form.verb, request: form.asked() });
}

async function begin() {
  try {
    const known = await offered();
    form = new Form(place("form"), known, changed);
    place("target").append(...known.targets.map((one) => new Option(one.name, one.name)));
    listen();
    await open(location.search);
  } catch (error) {
    fail(error);
  }
}

begin();
