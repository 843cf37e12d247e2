// What is asked of the server. Errors are its own sentences.

export const session = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
  byte.toString(16).padStart(2, "0")).join("");

async function checked(answer) {
  if (answer.ok) return answer;
  const text = await answer.text();
  let sentence = text;
  try { sentence = JSON.parse(text).error; } catch { /* plain words */ }
  throw new Error(sentence || `the server answered ${answer.status}.`);
}

async function reached(address, options) {
  try {
    return await fetch(address, options);
  } catch {
    throw new Error("the viewer cannot be reached; is it still running?");
  }
}

// Names of the folder's images from one on.
export const names = async (first) => (await (await checked(await reached(`api/images/${first}`))).json()).names;

export const about = async () => (await checked(await reached("api/about"))).json();

export async function ask(what, content) {
  const body = JSON.stringify({ session, ...content });
  return checked(await reached(`api/${what}`, { method: "POST", body }));
}

export const answer = async (what, content) => (await ask(what, content)).json();

export async function upload(file) {
  const headers = { "x-file-name": encodeURIComponent(file.name) };
  const options = { method: "POST", body: file, headers };
  return (await checked(await reached(`api/upload/${session}`, options))).json();
}

// Every pixel, as Uint8Array or Uint16Array (the server sends the low byte first, as all browsers'
// machines hold it).
export async function pixels(image, depth) {
  const found = await checked(await reached(`api/pixels/${session}/${image}`));
  const bytes = await found.arrayBuffer();
  return depth === 16 ? new Uint16Array(bytes) : new Uint8Array(bytes);
}

// The server frees what it keeps of this page when this connection ends.
export const stayAlive = () => new EventSource(`api/alive/${session}`);

export function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
