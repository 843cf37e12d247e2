// The lists beside the image: findings, sentences, annotated phrases, search results.

const $ = (id) => document.getElementById(id);

// An element with text and attributes; never HTML of what somebody wrote.
function made(kind, text = "", attributes = {}, ...inside) {
  const found = document.createElement(kind);
  found.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else if (value !== null) found.setAttribute(name, value);
  }
  found.append(...inside);
  return found;
}

const percent = (share) => `${(100 * share).toFixed(0)}%`;

function finding(one, showWhere) {
  const gauge = made("span", "", { class: "gauge" });
  if (one.probability !== null) {
    const filled = made("i"), mark = made("b");
    filled.style.width = percent(one.probability);
    mark.style.left = percent(Math.min(one.threshold, 0.995));
    gauge.append(filled, mark);
  }
  const value = one.probability === null ? "no scale" : one.probability.toFixed(2);
  const kind = one.calibrated ? "calibrated" : "uncalibrated";
  const words = one.probability === null
    ? `${one.seen ? "seen" : "not seen"}: its prompts score ${(one.present - one.absent).toFixed(3)} more than their denials`
    : `${one.seen ? "seen" : "not seen"}, threshold ${one.threshold.toFixed(2)}; ${kind}`;
  return made("li", "", {}, made("button", "", {
    type: "button", class: one.seen ? "seen" : null, title: `Show where: ${one.sentence}`,
    onclick: () => showWhere(one.sentence),
  }, made("span", one.name), made("span", value), gauge, made("small", words)));
}

export function showFindings(image, models, showWhere) {
  $("findings-none").hidden = image !== null;
  $("findings-lists").replaceChildren(...(image?.models ?? []).flatMap((model, number) => [
    ...(models.length > 1 ? [made("h3", models[number].name)] : []),
    made("ol", "", {}, ...model.findings.map((one) => finding(one, showWhere))),
  ]));
}

export function showSentences(sentences, { alone, toggle, remove }) {
  const single = sentences.filter((one) => one.on).length === 1;
  $("list").replaceChildren(...sentences.map((one, place) => {
    const box = made("input", "", {
      type: "checkbox", "aria-label": `Map of sentence ${place + 1}`, onchange: () => toggle(one),
    });
    box.checked = one.on;
    const notes = [...new Set(one.models.map((model) => model.note).filter(Boolean))];
    return made("li", "", { class: one.on && single ? "alone" : null }, box,
      made("button", `${place + 1}: ${one.text}`, {
        type: "button", class: "words", title: "Only this map", onclick: () => alone(one),
      }, ...notes.map((note) => made("small", ` ${note}`))),
      made("span", one.models.map((model) => model.score.toFixed(3)).join(" | "), {
        class: "score", title: one.models.map((model) =>
          `score; regions ${model.lowest.toFixed(3)} to ${model.highest.toFixed(3)}, highest at `
          + model.peak.map((value) => value.toFixed(0)).join(", ")).join(" | "),
      }),
      made("button", "\u00d7", {
        type: "button", "aria-label": `Remove sentence ${place + 1}`, onclick: () => remove(one),
      }));
  }));
}

export function showPhrases(phrases, showWhere) {
  $("phrases").hidden = !phrases.length;
  $("phrases").querySelector("ul").replaceChildren(...phrases.map(({ text, boxes }) =>
    made("li", "", {}, made("button", `${text} (${boxes.length} true box${boxes.length > 1 ? "es" : ""})`, {
      type: "button", onclick: () => showWhere(text),
    }))));
}

export function showHits(hits, openHit) {
  $("hits").replaceChildren(...hits.map((hit) => made("li", "", {}, made("button", "", {
    type: "button", title: `image ${hit.image_id}, study ${hit.study_id}`,
    disabled: hit.there ? null : "", onclick: () => openHit(hit),
  }, ...(hit.there ? [made("img", "", { src: `api/prepared/${hit.row}`, alt: "", loading: "lazy" })] : []),
  made("span", `${hit.rank}: ${hit.score.toFixed(3)}`)))));
}
