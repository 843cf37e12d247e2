// Scores at the original's pixels, from the scores of a model's regions; and boxes out of them.
// The same arithmetic as medclip_debias/grounding/heatmaps.py and regions.py.

// Where the pixels of an axis lie among the centres of the regions: for each of `pixels` the region
// before it, the share of the one after it, and whether the model saw it.
function axis(geometry, pad, side, cells, pixels) {
  const { size, crop, input, first, stride } = geometry;
  const before = new Int32Array(pixels.length), share = new Float64Array(pixels.length);
  const seen = new Uint8Array(pixels.length);
  pixels.forEach((pixel, k) => {
    const doubled = (2 * pixel + 1 + 2 * pad) * size - 2 * side * crop;
    seen[k] = doubled >= 0 && doubled <= 2 * side * input ? 1 : 0;
    const place = Math.min(Math.max((doubled / (2 * side) - first) / stride, 0), cells - 1);
    before[k] = Math.min(Math.floor(place), Math.max(cells - 2, 0));
    share[k] = place - before[k];
  });
  return { before, share, seen };
}

export class ScoreMap {
  // grid: scores row by row; geometry: as the server's `ViewedModel.geometry`.
  constructor(grid, geometry) {
    this.grid = Float64Array.from(grid);
    this.geometry = geometry;
  }

  // Calls take(k, row) for each of the pixels `rows`, with the scores of the pixels `columns` in
  // it; NaN where the model saw nothing.
  eachRow(columns, rows, take) {
    const { grid, geometry } = this, wide = geometry.columns;
    const across = axis(geometry, geometry.pad_x, geometry.side_x, wide, columns);
    const down = axis(geometry, geometry.pad_y, geometry.side_y, geometry.rows, rows);
    const profile = new Float64Array(wide), row = new Float64Array(columns.length);
    for (let k = 0; k < rows.length; k++) {
      const start = down.before[k] * wide, next = geometry.rows > 1 ? start + wide : start;
      for (let c = 0; c < wide; c++) {
        profile[c] = grid[start + c] + down.share[k] * (grid[next + c] - grid[start + c]);
      }
      for (let j = 0; j < columns.length; j++) {
        const c = across.before[j], after = wide > 1 ? c + 1 : c;
        row[j] = down.seen[k] && across.seen[j]
          ? profile[c] + across.share[j] * (profile[after] - profile[c]) : NaN;
      }
      take(k, row);
    }
  }

  // The score of the pixel in column x and row y.
  at(x, y) {
    let found = NaN;
    this.eachRow([x], [y], (k, row) => { found = row[0]; });
    return found;
  }

  // Connected pixels (also by a corner) whose score reaches the threshold, highest mean first:
  // {box: [x, y, width, height], mean, peak}.
  regions(width, height, threshold) {
    const columns = Int32Array.from({ length: width }, (_, j) => j);
    const rows = Int32Array.from({ length: height }, (_, i) => i);
    const parts = []; // of runs of pixels, joined by `parent`
    const root = (part) => {
      while (part.parent !== part) part = part.parent = part.parent.parent;
      return part;
    };
    let above = [];
    this.eachRow(columns, rows, (y, row) => {
      const runs = [];
      for (let x = 0; x < width; x++) {
        if (!(row[x] >= threshold)) continue;
        const run = { left: x, right: x, top: y, bottom: y, sum: 0, peak: -Infinity, area: 0 };
        for (; x < width && row[x] >= threshold; x++) {
          run.right = x;
          run.sum += row[x];
          run.area += 1;
          if (row[x] > run.peak) run.peak = row[x];
        }
        run.parent = run;
        run.from = run.left;
        run.to = run.right;
        parts.push(run);
        runs.push(run);
        for (const other of above) {
          if (other.from <= run.to + 1 && other.to + 1 >= run.from) join(root(other), root(run));
        }
      }
      above = runs;
    });
    return parts.filter((part) => part.parent === part).map((part) => ({
      box: [part.left, part.top, part.right - part.left + 1, part.bottom - part.top + 1],
      mean: part.sum / part.area,
      peak: part.peak,
    })).sort((a, b) => b.mean - a.mean);
  }
}

function join(a, b) {
  if (a === b) return;
  b.parent = a;
  a.left = Math.min(a.left, b.left);
  a.right = Math.max(a.right, b.right);
  a.top = Math.min(a.top, b.top);
  a.bottom = Math.max(a.bottom, b.bottom);
  a.peak = Math.max(a.peak, b.peak);
  a.sum += b.sum;
  a.area += b.area;
}

// Colours of the maps that are on: pixels are RGBA bytes, row by row. Where several are on the
// highest counts. Opacity rises with the score, as in the pictures of `medclip-debias ground`; what
// lies below the reference is not coloured.
export function coloured(maps, columns, rows, limits, reference, colours) {
  const wide = columns.length, best = new Float64Array(wide * rows.length).fill(-Infinity);
  for (const map of maps) {
    map.eachRow(columns, rows, (k, row) => {
      for (let j = 0; j < wide; j++) if (row[j] > best[k * wide + j]) best[k * wide + j] = row[j];
    });
  }
  const [low, high] = limits, found = new Uint8ClampedArray(4 * best.length);
  for (let k = 0; k < best.length; k++) {
    if (!(best[k] >= reference)) continue;
    const share = Math.min(Math.max((best[k] - low) / (high - low), 0), 1);
    const colour = colours[Math.min(Math.floor(share * 256), 255)];
    found[4 * k] = colour[0];
    found[4 * k + 1] = colour[1];
    found[4 * k + 2] = colour[2];
    found[4 * k + 3] = 255 * (0.1 + 0.9 * share);
  }
  return found;
}
