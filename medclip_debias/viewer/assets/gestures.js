// Mouse, touch and keys on the panes; what they do is in `act`.

// act: { pan(dx, dy), zoom(factor, clientX, clientY, pane), window(dx, dy), cursor(x, y, spoken),
// drag() } in pixels of the page.
export function listen(panes, act) {
  for (const pane of panes) {
    const { view } = pane, down = new Map();
    let windowing = false;
    view.addEventListener("pointerdown", (event) => {
      down.set(event.pointerId, [event.clientX, event.clientY]);
      view.setPointerCapture(event.pointerId);
      windowing = event.button === 2 || event.shiftKey || (act.drag() === "window" && down.size === 1);
    });
    view.addEventListener("pointermove", (event) => {
      const before = down.get(event.pointerId), now = [event.clientX, event.clientY];
      if (!before) {
        act.cursor(pane, ...now);
        return;
      }
      if (down.size === 2) { // two fingers: zoom about their middle, and move with it
        const [other] = [...down].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
        const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
        act.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
        act.zoom(apart(now, other) / Math.max(apart(before, other), 1),
          (now[0] + other[0]) / 2, (now[1] + other[1]) / 2, pane);
      } else if (windowing) {
        act.window(now[0] - before[0], now[1] - before[1]);
      } else {
        act.pan(now[0] - before[0], now[1] - before[1]);
      }
      down.set(event.pointerId, now);
      act.cursor(pane, ...now);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      view.addEventListener(name, (event) => down.delete(event.pointerId));
    }
    view.addEventListener("contextmenu", (event) => event.preventDefault());
    view.addEventListener("wheel", (event) => {
      event.preventDefault();
      act.zoom(Math.exp(-event.deltaY / 400), event.clientX, event.clientY, pane);
    }, { passive: false });
  }
}

// keys: what each key does; `arrow(dx, dy, event)` is called for the arrows. Nothing happens while
// somebody writes, moves a slider, or chooses.
export function listenToKeys(keys, arrow) {
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input, select, textarea")) return;
    if (arrows[event.key]) {
      if (!event.target.closest(".view")) return; // elsewhere they scroll the page
      arrow(...arrows[event.key], event);
    } else if (keys[event.key]) {
      keys[event.key]();
    } else {
      return;
    }
    event.preventDefault();
  });
}
