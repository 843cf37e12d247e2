// The page: what is open, what is asked, and what a click does. No data leaves this page but to the
// server that it came from.

import { listen, listenToKeys } from "./gestures.js";
import { showFindings, showHits, showPhrases, showSentences } from "./lists.js";
import { ScoreMap } from "./map.js";
import { Grey, METHODS, Pane } from "./pane.js";
import { about, answer, ask, download, pixels, stayAlive, upload } from "./server.js";
import { Strip } from "./strip.js";

const $ = (id) => document.getElementById(id);
const counted = (number) => number.toLocaleString("en");
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

const state = {
  image: null, // as the server described it, with `models`
  grey: null,
  sentences: [], // {text, on, models, maps, boxes}
  view: { scale: 1, x: 0, y: 0 }, // pixels of the page a pixel of the image; the middle of the pane
  window: [0, 1],
  inverted: false,
  maps: true,
  boxes: false,
  truth: true,
  opacity: 0.55,
  methods: [], // how each model's maps are computed
  threshold: 0.6, // share of the coloured range
  cursor: null,
  fitted: true, // the whole image is shown, also when the page gets another size
};
let common, strip = null, panes = [], opening = 0, choosing = 0;

// ------------------------------------------------------------------------------------- saying

function say(sentence, wrong = false) {
  $("status").textContent = sentence;
  $("status").classList.toggle("wrong", wrong);
}

async function reported(doing, act) {
  say(doing);
  try {
    return await act();
  } catch (error) {
    say(error.message, true);
    return null;
  }
}

// ------------------------------------------------------------------------------------ drawing

const wanted = new Set();

// Draw what has changed at the next frame: "grey", "image", "maps", "lines".
function draw(...parts) {
  if (!wanted.size) requestAnimationFrame(drawNow);
  parts.forEach((part) => wanted.add(part));
}

function drawNow() {
  const parts = new Set(wanted);
  wanted.clear();
  if (!state.image) return;
  const scale = state.view.scale * (window.devicePixelRatio || 1);
  if (parts.has("grey") || parts.has("image")) {
    state.grey.paint(...state.window, state.inverted, scale);
  }
  panes.forEach((pane, number) => {
    if (parts.has("grey") || parts.has("image")) pane.drawImage(state);
    if (parts.has("maps") || parts.has("image")) {
      pane.drawMaps(state, number);
      pane.drawBar(state, number);
    }
    pane.drawLines(state, number);
    pane.readout.textContent = pane.read(state, number);
  });
}

function clearPanes() {
  for (const pane of panes) {
    for (const canvas of [pane.base, pane.over, pane.lines]) canvas.width = canvas.width;
    pane.readout.textContent = "";
  }
}

// ------------------------------------------------------------------------------------ opening

// get: asks the server; texts: sentences to look for at once, else those of the list again;
// number: of an image of the folder. True when the image is shown.
async function open(doing, get, texts = state.sentences.map((one) => one.text), number = -1) {
  const turn = ++opening;
  const on = new Set(state.sentences.filter((one) => one.on).map((one) => one.text));
  // What was shown of the image before must not stand beside the next one, or beside an error.
  Object.assign(state, { image: null, grey: null, cursor: null, sentences: [] });
  clearPanes();
  strip?.mark(number);
  $("which").textContent = number < 0 ? "" : `image ${counted(number + 1)} of ${counted(common.images)}`;
  refresh();
  await reported(doing, async () => {
    const image = await get(), asked = { image: image.image, methods: panes.map((pane) => pane.choice.value) };
    if (asked.methods.some((method, number) => method !== common.models[number].method)) {
      image.models = (await answer("maps", asked)).models;
    }
    const levels = await pixels(image.image, image.depth);
    if (turn !== opening) return;
    state.image = image;
    state.methods = asked.methods;
    state.grey = new Grey(image, levels);
    state.window = [...image.window];
    state.inverted = false;
    press("invert", false);
    fit();
    setSliders();
    draw("grey");
    refresh();
    said();
    for (const text of texts) await look(text, on.size === 0 || on.has(text));
  });
  return state.image !== null;
}

const openNumber = (number, name) =>
  open(`Reading ${name}.`, () => answer("choose", { name }), undefined, number);

// The page begins with the first image of the folder that can be read.
async function openFirst() {
  for (let number = 0; number < Math.min(common.images, 8) && opening === number; number++) {
    if (await strip.choose(number)) return;
  }
}

function said() {
  const { name, width, height, window, inverted, aside } = state.image;
  const [black, white] = window.map((value) => Math.round(shownValue(value)));
  say(`${name}: ${width} x ${height} pixels${inverted ? ", MONOCHROME1" : ""}; black at ${black} and`
    + ` white at ${white}, as the model sees it.`
    + (aside ? ` ${aside} true boxes do not fit this image, and are not shown.` : ""));
}

// ---------------------------------------------------------------------------------- sentences

async function look(text, on = true) {
  const wish = text.trim().replace(/\s+/g, " ");
  const known = state.sentences.find((one) => one.text === wish);
  if (known) return alone(known);
  if (!state.image) return say("Open a radiograph first.", true);
  if (state.sentences.length >= common.most_sentences) {
    return say(`${common.most_sentences} sentences are on the page; remove one first.`, true);
  }
  const image = state.image;
  const found = await reported(`Looking for: ${wish}`, () =>
    answer("look", { image: image.image, sentence: wish, methods: state.methods }));
  if (!found || image !== state.image) return null;
  state.sentences.push({ text: wish, on, ...mapped(found.models) });
  said();
  changed();
  return state.sentences.at(-1);
}

// What is kept of a sentence's maps.
const mapped = (models) => ({
  models, boxes: [],
  maps: models.map((one, number) => new ScoreMap(one.grid, state.image.models[number].geometry)),
});

// Maps by the methods that the panes say: all sentences are looked for again. Where that fails, all
// stays as it is; of several choices in a row the last counts.
async function chooseMethods() {
  const methods = panes.map((pane) => pane.choice.value), turn = ++choosing, { image } = state;
  const texts = state.sentences.map((one) => one.text);
  const found = image && await reported(`Maps by ${methods.map((one) => METHODS[one]).join(" and ")}.`, async () => {
    const asked = { image: image.image, methods }, { models } = await answer("maps", asked);
    const looks = {};
    for (const sentence of texts) looks[sentence] = await answer("look", { ...asked, sentence });
    return { models, looks };
  });
  if (turn !== choosing || image !== state.image) return;
  if (image && !found) return panes.forEach((pane, number) => { pane.choice.value = state.methods[number]; });
  state.methods = methods;
  if (!image) return;
  image.models = found.models;
  const later = state.sentences.filter((one) => !(one.text in found.looks));
  state.sentences = state.sentences.filter((one) => one.text in found.looks);
  for (const one of state.sentences) Object.assign(one, mapped(found.looks[one.text].models));
  said();
  changed();
  for (const one of later) await look(one.text, one.on);
}

// Only this sentence's map.
function alone(sentence) {
  for (const one of state.sentences) one.on = one === sentence;
  state.maps = true;
  changed();
}

function changed() {
  refresh();
  setSliders();
  draw("maps");
}

async function showWhere(text) {
  const added = await look(text);
  if (added) alone(added);
}

// --------------------------------------------------------------------------------- view, window

function fit() {
  panes.forEach((pane) => pane.resize());
  const { image } = state;
  if (!image) return;
  state.fitted = true;
  state.view = { scale: panes[0].fitting(image), x: image.width / 2, y: image.height / 2 };
  draw("image");
}

function zoom(factor, clientX, clientY, pane = panes[0]) {
  if (!state.image) return;
  const { view } = state, at = clientX === undefined ? null : pane.toImage(view, clientX, clientY);
  const scale = clamp(view.scale * factor, 0.5 * pane.fitting(state.image), 40);
  if (at) { // the place under the pointer stays there
    view.x = at[0] - (at[0] - view.x) * (view.scale / scale);
    view.y = at[1] - (at[1] - view.y) * (view.scale / scale);
  }
  view.scale = scale;
  pan(0, 0);
}

function pan(dx, dy) {
  if (!state.image) return;
  const { view, image } = state;
  state.fitted = false;
  view.x = clamp(view.x - dx / view.scale, 0, image.width);
  view.y = clamp(view.y - dy / view.scale, 0, image.height);
  draw("image");
}

// A value of the file for one in display polarity, and back.
const shownValue = (value) =>
  state.image.inverted ? state.image.low + state.image.high - value : value;

function setWindow(centre, width) {
  const { low, high, step } = state.image, most = 2 * (high - low);
  width = clamp(width, 2 * step, most);
  centre = clamp(centre, low, high);
  state.window = [centre - width / 2, centre + width / 2];
  setSliders();
  draw("grey");
}

const centre = () => (state.window[0] + state.window[1]) / 2;
const breadth = () => state.window[1] - state.window[0];

function shiftWindow(dx, dy) {
  if (!state.image) return;
  const unit = (state.image.high - state.image.low) / 500;
  setWindow(centre() - dy * unit, breadth() + dx * unit);
}

function setSliders() {
  const { image } = state, set = (name, low, high, step, value) => {
    Object.assign($(name), { min: low, max: high, step, disabled: false });
    $(name).value = value;
    $(`${name}-said`).textContent = Number(value.toFixed(step < 1 ? 2 : 0));
  };
  if (image) {
    const ends = [shownValue(image.low), shownValue(image.high)].sort((a, b) => a - b);
    set("centre", ...ends, image.step, shownValue(centre()));
    set("width", 2 * image.step, 2 * (image.high - image.low), image.step, breadth());
    $("threshold-said").textContent =
      panes.map((pane, number) => pane.threshold(state, number).toFixed(3)).join(" and ");
  }
  $("opacity").value = state.opacity;
  $("opacity-said").textContent = `${Math.round(100 * state.opacity)}%`;
}

function invert() {
  state.inverted = !state.inverted;
  press("invert", state.inverted);
  draw("grey");
}

function opacity(value) {
  state.opacity = clamp(value, 0, 1);
  for (const pane of panes) pane.over.style.opacity = state.opacity;
  setSliders();
}

const press = (name, on) => $(name).setAttribute("aria-pressed", String(on));

function toggle(name) {
  state[name] = !state[name];
  press(name, state[name]);
  draw(name === "maps" ? "maps" : "lines");
}

// ------------------------------------------------------------------------------------- cursor

function cursor(pane, clientX, clientY) {
  if (!state.image) return;
  moveTo(pane.toImage(state.view, clientX, clientY).map(Math.floor));
}

function moveTo([x, y]) {
  const { image } = state, inside = x >= 0 && y >= 0 && x < image.width && y < image.height;
  state.cursor = inside ? [x, y] : null;
  draw("lines");
}

// Arrows move the image, with Shift the cursor, which then is read aloud.
function arrow(dx, dy, event) {
  if (!state.image) return;
  if (!event.shiftKey) return pan(-40 * dx, -40 * dy);
  const { image } = state, by = event.altKey ? 1 : Math.max(1, Math.round(image.width / 100));
  const from = state.cursor ?? [state.view.x, state.view.y].map(Math.floor);
  moveTo([clamp(from[0] + by * dx, 0, image.width - 1), clamp(from[1] + by * dy, 0, image.height - 1)]);
  $("spoken").textContent = panes.map((pane, number) => pane.read(state, number)).join("; ");
}

function step(by) {
  const { sentences } = state, now = sentences.findIndex((one) => one.on);
  if (sentences.length) alone(sentences[(Math.max(now, by < 0 ? 0 : -1) + by + sentences.length) % sentences.length]);
}

// ------------------------------------------------------------------------------------- export

async function exportPictures() {
  for (const [number, pane] of panes.entries()) {
    const name = panes.length > 1 ? `${number + 1}_` : "";
    download(`${name}${state.image.name.replace(/[^\w.-]+/g, "_")}.png`, await pane.picture(state, number));
  }
}

async function exportAs(kind) {
  const number = Number($("whose").value || 0);
  const found = await reported(`Writing ${kind.toUpperCase()}.`, async () => ask("export", {
    image: state.image.image,
    model: number,
    sentences: state.sentences.map((one) => one.text),
    threshold: state.boxes ? panes[number].threshold(state, number) : null,
    kind,
    method: state.methods[number],
  }));
  if (!found) return;
  const [, name] = /filename="([^"]+)"/.exec(found.headers.get("content-disposition"));
  download(name, await found.blob());
  say(`${name} is in this browser's folder of downloads.`);
}

// ------------------------------------------------------------------------------------- search

async function search(content, text) {
  const found = await reported("Searching.", () =>
    answer("search", { ...content, count: Number($("count").value) || 10 }));
  if (!found) return;
  say(`${found.hits.length} of ${common.indexed} images, best first.`);
  showHits(found.hits, (hit) => open(`Opening result ${hit.rank}.`, () =>
    answer("hit", { row: hit.row }), text ? [text] : undefined));
}

// -------------------------------------------------------------------------------------- lists

function refresh() {
  const none = !state.image;
  warn("maps-warning", (state.image?.models ?? common.models).map((one) => one.maps));
  showFindings(state.image, common.models, showWhere);
  showSentences(state.sentences, state.image?.models, {
    alone,
    toggle: (one) => { one.on = !one.on; changed(); },
    remove: (one) => { state.sentences.splice(state.sentences.indexOf(one), 1); changed(); },
  });
  showPhrases(state.image?.phrases ?? [], showWhere);
  $("truth").hidden = none || !state.image.phrases.length;
  $("similar").disabled = none;
  $("empty").hidden = !none || Boolean(common.images);
  for (const button of $("exports").children) {
    button.disabled = none || (button.id !== "png" && !state.sentences.length)
      || (button.dataset.dicom === "yes" && !state.image.dicom);
  }
}

// -------------------------------------------------------------------------------------- start

function warn(id, sentences) {
  $(id).textContent = [...new Set(sentences.filter(Boolean))].join(" ");
  $(id).hidden = !$(id).textContent;
}

function head() {
  warn("warning", common.models.map((one) => one.warning));
  for (const { lines } of common.models) {
    const list = document.createElement("dl");
    for (const [name, value] of lines) {
      list.append(Object.assign(document.createElement("dt"), { textContent: name }));
      list.append(Object.assign(document.createElement("dd"), { textContent: value }));
    }
    $("about").querySelector("div").append(list);
  }
  $("folder").hidden = $("strip").hidden = !common.images;
  if (common.images) strip = new Strip($("strip"), common.images, common.listed, openNumber);
  $("search").hidden = common.indexed === null;
  if (common.indexed !== null) $("indexed").textContent = `${counted(common.indexed)} images`;
  $("export-model").hidden = common.models.length < 2;
  common.models.forEach((one, number) => $("whose").add(new Option(one.name, number)));
  for (const kind of common.exports) {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.textContent = kind === "json" ? "JSON" : `DICOM ${kind.toUpperCase()}`;
    button.dataset.dicom = kind === "json" ? "no" : "yes";
    button.addEventListener("click", () => exportAs(kind));
    $("exports").append(button);
  }
}

function controls() {
  const on = (id, act, kind = "click") => $(id).addEventListener(kind, act);
  const file = (one) => one && open(`Reading ${one.name}.`, () => upload(one));
  on("file", (event) => { file(event.target.files[0]); event.target.value = ""; }, "change");
  for (const [kind, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      document.body.classList.toggle("dropping", over);
      if (kind === "drop") file(event.dataTransfer.files[0]);
    });
  }
  on("add", (event) => {
    event.preventDefault();
    const text = $("sentence").value;
    $("sentence").value = "";
    look(text);
  }, "submit");
  on("query-form", (event) => {
    event.preventDefault();
    search({ sentence: $("query").value }, $("query").value);
  }, "submit");
  on("similar", () => search({ image: state.image.image }, null));
  const acts = {
    in: () => zoom(1.25), out: () => zoom(0.8), fit, full: () => zoom(1 / state.view.scale), invert,
    reset: () => { if (state.image) { state.window = [...state.image.window]; setSliders(); draw("grey"); } },
    maps: () => toggle("maps"), boxes: () => toggle("boxes"), truth: () => toggle("truth"),
    keys: () => $("help").showModal(), png: exportPictures,
    next: () => strip?.step(1), previous: () => strip?.step(-1),
  };
  for (const [id, act] of Object.entries(acts)) on(id, act);
  on("centre", ({ target }) => setWindow(shownValue(Number(target.value)), breadth()), "input");
  on("width", ({ target }) => setWindow(centre(), Number(target.value)), "input");
  on("opacity", ({ target }) => opacity(Number(target.value)), "input");
  on("threshold", ({ target }) => {
    state.threshold = Number(target.value);
    state.boxes = true;
    press("boxes", true);
    setSliders();
    draw("lines");
  }, "input");
  listen(panes, { pan, zoom, window: shiftWindow, cursor, drag: () => $("drag").value });
  listenToKeys({
    "+": acts.in, "=": acts.in, "-": acts.out, 0: fit, 1: acts.full, i: invert, r: acts.reset,
    c: () => shiftWindow(0, 10), v: () => shiftWindow(0, -10), w: () => shiftWindow(-20, 0),
    e: () => shiftWindow(20, 0), m: acts.maps, b: acts.boxes, t: acts.truth,
    "[": () => opacity(state.opacity - 0.05), "]": () => opacity(state.opacity + 0.05),
    ".": acts.next, ",": acts.previous, n: () => step(1), p: () => step(-1), "/": () => $("sentence").focus(), "?": acts.keys,
  }, arrow);
  const resized = new ResizeObserver(() => {
    if (state.fitted) fit();
    else {
      panes.forEach((pane) => pane.resize());
      draw("image");
    }
    drawNow(); // another size empties a canvas, and at the next frame that would be seen
  });
  for (const pane of panes) {
    resized.observe(pane.view);
    pane.choice.addEventListener("change", chooseMethods);
  }
}

async function start() {
  try {
    common = await about();
  } catch (error) {
    return say(error.message, true);
  }
  state.opacity = common.alpha;
  state.methods = common.models.map((one) => one.method);
  panes = common.models.map((one) => new Pane($("panes"), one, common, common.models.length > 1));
  head();
  controls();
  setSliders();
  refresh();
  stayAlive();
  document.body.dataset.ready = "yes";
  if (strip) await openFirst();
}

start();
