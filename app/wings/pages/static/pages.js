// Keyboard and live updates. Every page works without this file.

const typing = (element) => element instanceof HTMLElement && element.matches("input, textarea, select, [contenteditable]");

/** Move the focus to the next or the previous row of the page's list. */
function moveRow(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (rows.length === 0) return;
  const here = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.min(rows.length - 1, Math.max(0, here < 0 && step > 0 ? 0 : here + step))];
  const target = next.matches("a, button") ? next : next.querySelector("a, button, summary") ?? next;
  target.focus();
  next.scrollIntoView({ block: "nearest" });
}

/** Follow the page's link for a key, such as the next call or the difference; false if there is none. */
function followKey(key) {
  const link = document.querySelector(`a[data-key="${key}"]`);
  if (link) link.click();
  return Boolean(link);
}

// WCAG 2.1.4: whoever types single characters for other reasons, such as by voice, can turn the keys off.
const KEYS = "palimpsest.keys";
const keysOff = () => localStorage.getItem(KEYS) === "off";
const footer = document.querySelector("footer");
if (footer) {
  const button = document.createElement("button");
  const label = () => (button.textContent = keysOff() ? "Turn the keys on" : "Turn the keys off");
  button.className = "quiet";
  button.addEventListener("click", () => {
    localStorage.setItem(KEYS, keysOff() ? "on" : "off");
    label();
  });
  label();
  footer.append(" ", button);
}

document.addEventListener("keydown", (event) => {
  if (keysOff()) return;
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (!field && !followKey("/")) return;
    event.preventDefault();
    field?.focus();
  } else if (event.key === "d") {
    followKey("d");
  } else if (event.key === "j" || event.key === "k") {
    if (!followKey(event.key)) moveRow(event.key === "j" ? 1 : -1);
  }
});

/** Copy a text that the server offers at the button's address. */
document.addEventListener("click", async (event) => {
  const button = event.target instanceof Element ? event.target.closest("button[data-copy]") : null;
  if (!button) return;
  const response = await fetch(button.dataset.copy);
  await navigator.clipboard.writeText(await response.text());
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label), 1500);
});

/** Replace the parts of the page marked `data-live` by those of the same page as it is now. */
async function refresh() {
  const response = await fetch(location.href, { headers: { "Cache-Control": "no-cache" } });
  if (!response.ok || response.redirected) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const replacement = fresh.getElementById(part.id);
    if (replacement && !part.contains(document.activeElement)) part.replaceWith(document.adoptNode(replacement));
  }
}

const stream = document.querySelector("[data-stream]")?.getAttribute("data-stream");
if (stream) {
  let waiting = null;
  const changed = () => {
    waiting ??= setTimeout(() => {
      waiting = null;
      refresh();
    }, 1000);
  };
  const source = new EventSource(stream);
  for (const name of ["appended", "epoch", "compaction"]) source.addEventListener(name, changed);
  addEventListener("pagehide", () => source.close());
}
