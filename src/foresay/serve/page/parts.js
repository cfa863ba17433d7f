// Elements, the one tooltip, and arrow keys. Text only ever enters as text: what a model writes is
// never read as markup.

const SVG = document.querySelector("svg").namespaceURI;
const tip = document.getElementById("tip");

/** An element with attributes and children; strings become text. */
export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for the inside of an <svg>. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A number of things. */
export function many(count, one, ending = "s") {
  return `${count} ${one}${count === 1 ? "" : ending}`;
}

/** A button that copies a text: what `text` returns when it is pressed. */
export function copying(about, text) {
  const button = html("button", { type: "button", title: about, "aria-label": about }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers have no clipboard for pages without TLS, but this.
    const box = html("textarea", { class: "unseen" });
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}

/** From now on, whatever has `data-tip` shows it when it is pointed at or focused, and arrow keys
 *  walk through the children of whatever has `data-rove`. */
export function watch() {
  for (const name of ["pointerover", "focusin"]) {
    document.addEventListener(name, ({ target }) => show(target.closest("[data-tip]")));
  }
  document.addEventListener("focusout", () => show(null));
  document.addEventListener("scroll", place, true);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") show(null);
    const holder = event.target.closest("[data-rove]");
    if (holder && walk(holder, event.target, event.key)) event.preventDefault();
  });
}

/** Make the element one of those that arrow keys reach; Tab reaches the first. */
export function reachable(holder, element) {
  const first = holder.querySelector("[tabindex='0']") === null;
  element.setAttribute("tabindex", first ? "0" : "-1");
  holder.append(element);
}

function walk(holder, from, key) {
  const all = [...holder.querySelectorAll("[data-tip]")];
  const at = all.indexOf(from);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[key];
  if (at < 0 || to === undefined || !all[to]) return false;
  all[at].setAttribute("tabindex", "-1");
  all[to].setAttribute("tabindex", "0");
  all[to].focus();
  return true;
}

let shown = null;

function show(element) {
  if (element === shown) return;
  shown?.removeAttribute("aria-describedby");
  shown = element;
  tip.hidden = element === null;
  if (element === null) return;
  if (!element.ariaLabel) element.setAttribute("aria-describedby", "tip");
  tip.textContent = element.dataset.tip;
  place();
}

/** Put the tooltip beside its element's first line, and never over the window's edge. */
function place() {
  if (shown === null) return;
  if (!shown.isConnected) return show(null); // it was drawn anew
  const at = shown.getClientRects()[0] ?? shown.getBoundingClientRect();
  const left = Math.min(at.left, innerWidth - tip.offsetWidth - 8);
  const above = at.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${above < 4 ? at.bottom + 6 : above}px`;
}
