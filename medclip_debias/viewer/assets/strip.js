// Thumbnails of the folder's images, made as they scroll into view: a folder may hold any number.

import { names } from "./server.js";

const WIDE = 100; // pixels of the page from one thumbnail to the next
const SETTLED = 80; // milliseconds without another choice until an image is asked for
const LONGEST = 8e6; // pixels that browsers scroll over; beyond, one pixel stands for several

export class Strip {
  // count: images of the folder; listed: names that the server gives at a time; open(number, name).
  constructor(element, count, listed, open) {
    Object.assign(this, { element, count, listed, open, current: -1, blocks: new Map(), shown: new Map() });
    this.track = element.appendChild(document.createElement("div"));
    this.track.style.width = `${Math.min(count * WIDE, LONGEST)}px`;
    let settled;
    element.addEventListener("scroll", () => {
      this.place();
      clearTimeout(settled);
      settled = setTimeout(() => this.load(), SETTLED); // nothing is made of what only flies past
    });
    new ResizeObserver(() => { this.place(); this.load(); }).observe(element);
  }

  // Pixels from the first thumbnail to the left side of the strip.
  offset() {
    const { scrollLeft, clientWidth } = this.element;
    const all = this.count * WIDE - clientWidth, track = this.track.offsetWidth - clientWidth;
    return track > 0 ? scrollLeft * (all / track) : 0;
  }

  // Make the buttons that are in view, and remove the others.
  place() {
    const left = this.offset(), { scrollLeft, clientWidth } = this.element;
    const first = Math.max(0, Math.floor(left / WIDE) - 2);
    const last = Math.min(this.count - 1, Math.ceil((left + clientWidth) / WIDE) + 2);
    for (const [number, button] of this.shown) {
      if (number < first || number > last) {
        button.remove();
        this.shown.delete(number);
      }
    }
    for (let number = first; number <= last; number++) {
      if (!this.shown.has(number)) this.shown.set(number, this.made(number));
      this.shown.get(number).style.left = `${scrollLeft + number * WIDE - left}px`;
    }
  }

  made(number) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.number = number;
    button.setAttribute("aria-label", `Image ${number + 1}`);
    button.setAttribute("aria-current", String(number === this.current));
    button.addEventListener("click", () => this.choose(number));
    this.track.append(button);
    return button;
  }

  // Names and thumbnails of the buttons in view.
  async load() {
    for (const [number, button] of [...this.shown].sort(([a], [b]) => a - b)) {
      if (button.firstChild) continue;
      const name = await this.name(number);
      if (!name || !button.isConnected || button.firstChild) continue;
      button.title = name;
      button.setAttribute("aria-label", name);
      const image = Object.assign(new Image(), { alt: "", src: `api/thumbnail/${number}` });
      image.addEventListener("error", () => image.replaceWith(name));
      button.append(image);
    }
  }

  async name(number) {
    const block = Math.floor(number / this.listed);
    if (!this.blocks.has(block)) this.blocks.set(block, names(block * this.listed));
    try {
      return (await this.blocks.get(block))[number % this.listed];
    } catch { // the server is busy or gone: asked again when it is looked at again
      this.blocks.delete(block);
      return "";
    }
  }

  // Open an image, and bring its thumbnail into view.
  async choose(number) {
    this.mark(number);
    const left = this.offset(), { clientWidth } = this.element;
    if (number * WIDE < left || (number + 1) * WIDE > left + clientWidth) {
      const all = this.count * WIDE - clientWidth, track = this.track.offsetWidth - clientWidth;
      this.element.scrollLeft = (number * WIDE - clientWidth / 2) * (track / all);
      this.place();
      this.load();
    }
    const [name] = await Promise.all([this.name(number), new Promise((go) => setTimeout(go, SETTLED))]);
    return number === this.current ? this.open(number, name) : false; // a key held down passes by
  }

  // The next image or the one before; a page that shows none of the folder begins with the first.
  step(by) {
    const number = this.current < 0 ? 0 : this.current + by;
    return number >= 0 && number < this.count ? this.choose(number) : null;
  }

  // Which image of the folder is open; -1 for none.
  mark(number) {
    this.shown.get(this.current)?.setAttribute("aria-current", "false");
    this.current = number;
    this.shown.get(number)?.setAttribute("aria-current", "true");
  }
}
