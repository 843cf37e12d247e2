// One model's picture: the radiograph, the maps over it, boxes, cursor, colour bar, read-out.

import { coloured } from "./map.js";

// The radiograph through a window; painted anew only when the window changes, or the zoom so much
// that more or fewer of its pixels are seen.
export class Grey {
  constructor(image, levels) {
    this.image = image;
    this.levels = levels;
    this.halves = [{ levels, width: image.width, height: image.height }]; // each half the one before
    this.painted = "";
  }

  // from, to: values in display polarity that become black and white; scale: pixels of the screen
  // a pixel of the image. A small picture of a large image is painted from means of its pixels.
  paint(from, to, inverted, scale) {
    const times = Math.min(Math.max(Math.floor(Math.log2(1 / scale)), 0), 4);
    const what = [from, to, inverted, times].join();
    if (what === this.painted) return;
    this.painted = what;
    while (this.halves.length <= times) this.halves.push(halved(this.halves.at(-1)));
    const { levels, width, height } = this.halves[times], { image } = this;
    const table = new Uint32Array(image.depth === 16 ? 65536 : 256);
    for (let level = 0; level < table.length; level++) {
      const share = (image.low + image.step * level - from) / Math.max(to - from, 1e-9);
      const grey = Math.round(255 * Math.min(Math.max(inverted ? 1 - share : share, 0), 1));
      table[level] = (0xff000000 | (grey * 0x010101)) >>> 0;
    }
    const data = new ImageData(width, height), words = new Uint32Array(data.data.buffer);
    for (let k = 0; k < levels.length; k++) words[k] = table[levels[k]];
    this.canvas = new OffscreenCanvas(width, height);
    this.canvas.getContext("2d").putImageData(data, 0, 0);
    this.times = 2 ** times;
  }

  // Draw it where a pixel of the image is a unit of the context.
  draw(context) {
    const { canvas, times, image } = this;
    context.save();
    context.beginPath();
    context.rect(0, 0, image.width, image.height);
    context.clip();
    context.drawImage(canvas, 0, 0, canvas.width * times, canvas.height * times);
    context.restore();
  }

  // The value that the file holds at a pixel.
  value(x, y) {
    const { low, high, step, inverted, width } = this.image;
    const shown = low + step * this.levels[y * width + x];
    return inverted ? low + high - shown : shown;
  }
}

// Means of two by two pixels; of an odd last row or column those that there are.
function halved({ levels, width, height }) {
  const wide = Math.ceil(width / 2), high = Math.ceil(height / 2);
  const found = new levels.constructor(wide * high);
  for (let y = 0; y < high; y++) {
    const above = 2 * y * width, below = Math.min(2 * y + 1, height - 1) * width;
    for (let x = 0; x < wide; x++) {
      const left = 2 * x, right = Math.min(left + 1, width - 1);
      found[y * wide + x] = (levels[above + left] + levels[above + right]
        + levels[below + left] + levels[below + right] + 2) >> 2;
    }
  }
  return { levels: found, width: wide, height: high };
}

const number = (value) => (Number.isNaN(value) ? "not seen" : value.toFixed(3));

export const METHODS = { similarity: "similarity", gradcam: "Grad-CAM", occlusion: "occlusion" };

export class Pane {
  // about: what the server says of the model; common: colours, names of boxes.
  constructor(place, about, common, titled) {
    this.about = about;
    this.common = common;
    this.element = document.createElement("div");
    this.element.className = "pane";
    this.element.innerHTML = `<h3></h3><label class="method">Maps by <select></select></label><div class="view" tabindex="0" role="application"><canvas></canvas>
      <canvas></canvas><canvas></canvas></div><div class="bar"><span></span><canvas width="256"
      height="12" role="img" aria-label="Colours of the maps"></canvas><span></span></div><div class="readout"></div>`;
    const title = this.element.querySelector("h3");
    title.textContent = about.name;
    title.hidden = !titled;
    this.choice = this.element.querySelector("select");
    for (const method of common.methods) this.choice.add(new Option(METHODS[method], method));
    this.choice.value = about.method;
    this.view = this.element.querySelector(".view");
    this.view.setAttribute("aria-label", `Radiograph with maps of ${about.name}; ? lists the keys`);
    [this.base, this.over, this.lines] = this.view.querySelectorAll("canvas");
    this.readout = this.element.querySelector(".readout");
    place.append(this.element);
  }

  // Pixels of the canvases, which follow the place that the page gives them.
  resize() {
    const ratio = window.devicePixelRatio || 1, { clientWidth, clientHeight } = this.view;
    for (const canvas of [this.base, this.over, this.lines]) {
      canvas.width = Math.max(1, Math.round(clientWidth * ratio));
      canvas.height = Math.max(1, Math.round(clientHeight * ratio));
    }
    this.ratio = ratio;
  }

  // Scale at which the whole image fits, in pixels of the page a pixel of the image.
  fitting(image) {
    return Math.min(this.view.clientWidth / image.width, this.view.clientHeight / image.height) || 1;
  }

  // Where the upper left corner of the image lies on the canvas, and the scale there.
  frame(view) {
    const scale = view.scale * this.ratio;
    // Whole pixels, so that an image at its own size is not blurred.
    return [Math.round(this.base.width / 2 - view.x * scale),
      Math.round(this.base.height / 2 - view.y * scale), scale];
  }

  // Place on the image of a place on the page.
  toImage(view, clientX, clientY) {
    const box = this.view.getBoundingClientRect(), [left, top, scale] = this.frame(view);
    return [((clientX - box.left) * this.ratio - left) / scale,
      ((clientY - box.top) * this.ratio - top) / scale];
  }

  // Lowest and highest score that have a colour: one scale for all sentences of the image.
  limits(state, number) {
    const { colours } = state.image.models[number];
    const highest = state.sentences.map((one) => one.models[number].highest);
    return [colours[0], Math.max(colours[1], ...highest)];
  }

  // The score from which boxes are cut, at a share of the coloured range.
  threshold(state, number) {
    const [low, high] = this.limits(state, number);
    return low + state.threshold * (high - low);
  }

  drawImage(state) {
    const context = this.base.getContext("2d"), [left, top, scale] = this.frame(state.view);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.base.width, this.base.height);
    context.imageSmoothingEnabled = scale < 3; // single pixels are seen as such
    context.imageSmoothingQuality = "high";
    context.setTransform(scale, 0, 0, scale, left, top);
    state.grey.draw(context);
  }

  drawMaps(state, number) {
    const context = this.over.getContext("2d"), [left, top, scale] = this.frame(state.view);
    const { width, height } = this.over, { image } = state;
    context.clearRect(0, 0, width, height);
    this.over.style.opacity = state.opacity;
    const maps = state.sentences.filter((one) => one.on).map((one) => one.maps[number]);
    if (!state.maps || !maps.length) return;
    // Pixels of the canvas that lie on the image, and the pixel of the image under each.
    const along = (start, most, side) => {
      const first = Math.max(0, Math.ceil(start - 0.5)), found = [];
      for (let k = first; k < most && (k + 0.5 - start) / scale < side; k++) {
        found.push(Math.floor((k + 0.5 - start) / scale));
      }
      return [first, Int32Array.from(found)];
    };
    const [x, columns] = along(left, width, image.width), [y, rows] = along(top, height, image.height);
    if (!columns.length || !rows.length) return;
    const { reference } = image.models[number];
    const bytes = coloured(maps, columns, rows, this.limits(state, number), reference,
      this.common.colours);
    context.putImageData(new ImageData(bytes, columns.length, rows.length), x, y);
  }

  drawLines(state, number) {
    const context = this.lines.getContext("2d"), frame = this.frame(state.view);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.lines.width, this.lines.height);
    this.boxes(context, state, number, frame, this.ratio);
    const [left, top, scale] = frame;
    if (state.cursor) {
      const x = left + (state.cursor[0] + 0.5) * scale, y = top + (state.cursor[1] + 0.5) * scale;
      for (const [colour, wide] of [["black", 3], ["white", 1]]) {
        context.strokeStyle = colour;
        context.lineWidth = wide * this.ratio;
        context.beginPath();
        for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
          context.moveTo(x + 4 * dx * this.ratio, y + 4 * dy * this.ratio);
          context.lineTo(x + 12 * dx * this.ratio, y + 12 * dy * this.ratio);
        }
        context.stroke();
      }
    }
  }

  boxes(context, state, number, [left, top, scale], ratio) {
    const drawn = [];
    if (state.boxes) {
      state.sentences.forEach((one, place) => {
        if (one.on) for (const { box } of this.found(state, number, one)) drawn.push([box, false, place + 1]);
      });
    }
    if (state.truth) for (const { boxes } of state.image.phrases) for (const box of boxes) drawn.push([box, true]);
    for (const [[x, y, w, h], isTrue, label] of drawn) {
      const place = [left + x * scale, top + y * scale, w * scale, h * scale];
      for (const [colour, wide] of [["black", 3.5], [this.common.boxes[isTrue ? "true" : "found"], 1.75]]) {
        context.setLineDash(isTrue || colour === "black" ? [] : [6 * ratio, 4 * ratio]);
        context.strokeStyle = colour;
        context.lineWidth = wide * ratio;
        context.strokeRect(...place);
      }
      context.setLineDash([]);
      const words = isTrue ? "true" : String(label);
      context.font = `${13 * ratio}px system-ui, sans-serif`;
      context.lineWidth = 3 * ratio;
      context.strokeStyle = "black";
      context.fillStyle = "white";
      // Above the box, or in it where there is no room.
      const line = place[1] > 20 * ratio ? place[1] - 5 * ratio : place[1] + 15 * ratio;
      context.strokeText(words, place[0], line);
      context.fillText(words, place[0], line);
    }
  }

  // Boxes of a sentence; kept until the threshold or the limits change.
  found(state, number, sentence) {
    const threshold = this.threshold(state, number);
    const kept = sentence.boxes[number];
    if (kept && kept.threshold === threshold) return kept.regions;
    const regions = sentence.maps[number].regions(state.image.width, state.image.height, threshold);
    sentence.boxes[number] = { threshold, regions };
    return regions;
  }

  drawBar(state, number) {
    const canvas = this.element.querySelector(".bar canvas"), context = canvas.getContext("2d");
    const [start, end] = this.element.querySelectorAll(".bar span");
    const [low, high] = this.limits(state, number), { reference } = state.image.models[number];
    this.paintBar(context, canvas.width, canvas.height, low, high, reference);
    const { kind } = state.image.models[number];
    start.textContent = low.toFixed(2);
    end.textContent = `${high.toFixed(2)} ${kind}; coloured from ${reference.toFixed(2)}`;
    canvas.setAttribute("aria-label",
      `Colours from ${low.toFixed(2)} to ${high.toFixed(2)}, none below ${reference.toFixed(2)}`);
  }

  paintBar(context, width, height, low, high, reference) {
    for (let k = 0; k < width; k++) {
      const score = low + ((k + 0.5) / width) * (high - low);
      const colour = this.common.colours[Math.min(255, Math.floor((256 * k) / width))];
      context.fillStyle = score < reference ? "#d4d4d4" : `rgb(${colour.join()})`;
      context.fillRect(k, 0, 1, height);
    }
  }

  // Words on the pixel under the cursor.
  read(state, number_) {
    if (!state.cursor) return "";
    const [x, y] = state.cursor;
    const scores = state.sentences.map((one, place) =>
      one.on ? `${place + 1}: ${number(one.maps[number_].at(x, y))}` : "").filter(Boolean);
    return `x ${x}, y ${y}, grey ${Number(state.grey.value(x, y).toFixed(2))}` +
      (scores.length ? `; score ${scores.join(", ")}` : "");
  }

  // The whole image with its maps, boxes, colour bar and words, at its own pixels (4,096 at most).
  async picture(state, number) {
    const { image } = state, scale = Math.min(1, 4096 / Math.max(image.width, image.height));
    const width = Math.round(image.width * scale), height = Math.round(image.height * scale);
    const unit = Math.max(width, 600) / 60; // of the words below the image
    const on = state.sentences.map((one, place) => [one, place + 1]).filter(([one]) => one.on && state.maps);
    const [low, high] = this.limits(state, number), { reference } = image.models[number];
    const words = [`${this.about.name}: for research only, not for diagnosis.`,
      ...(this.about.warning ? [this.about.warning] : []),
      ...(on.length && image.models[number].maps ? [image.models[number].maps] : []),
      ...(on.length ? [`Maps by ${METHODS[state.methods[number]]}.`] : []),
      ...on.map(([one, place]) => `${place}: ${one.text} (score ${one.models[number].score.toFixed(3)})`)];
    const canvas = new OffscreenCanvas(Math.max(width, 600), height + Math.ceil((2 + 1.5 * words.length) * unit));
    const context = canvas.getContext("2d");
    context.fillStyle = "white";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "high";
    state.grey.paint(...state.window, state.inverted, scale);
    context.save();
    context.scale(width / image.width, height / image.height);
    state.grey.draw(context);
    context.restore();
    if (on.length) {
      const under = (side, most) => Int32Array.from({ length: side }, (_, k) =>
        Math.min(most - 1, Math.floor((k + 0.5) / scale)));
      const bytes = coloured(on.map(([one]) => one.maps[number]), under(width, image.width),
        under(height, image.height), [low, high], reference, this.common.colours);
      const layer = new OffscreenCanvas(width, height);
      layer.getContext("2d").putImageData(new ImageData(bytes, width, height), 0, 0);
      context.globalAlpha = state.opacity;
      context.drawImage(layer, 0, 0);
      context.globalAlpha = 1;
    }
    this.boxes(context, state, number, [0, 0, scale], unit / 10);
    context.font = `${unit}px system-ui, sans-serif`;
    context.fillStyle = "black";
    const said = `${high.toFixed(2)}; coloured from ${reference.toFixed(2)}`;
    const start = context.measureText(low.toFixed(2)).width + unit;
    context.fillText(low.toFixed(2), 0.5 * unit, height + 1.4 * unit);
    context.save();
    context.translate(start, height + 0.5 * unit);
    this.paintBar(context, 20 * unit, unit, low, high, reference);
    context.restore();
    context.fillStyle = "black";
    context.fillText(said, start + 20.5 * unit, height + 1.4 * unit);
    words.forEach((line, place) => {
      context.fillStyle = line === this.about.warning ? "#b00020" : "black";
      context.fillText(line, 0.5 * unit, height + (2.9 + 1.5 * place) * unit, canvas.width - unit);
    });
    return canvas.convertToBlob({ type: "image/png" });
  }
}
