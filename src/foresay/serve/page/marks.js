// The text of an answer as it came: in tokens, each marked by where it was drafted from.

import { html } from "/page/parts.js";
import { SOURCES } from "/page/sources.js"; // which the server writes, in the order of a legend

const DRAFTED = Object.keys(SOURCES).filter((name) => name !== "model");

/** Attributes that show a source; page.css has as many marks as there may be sources. */
export function markOf(source) {
  const at = DRAFTED.indexOf(source);
  return at < 0 ? {} : { "data-mark": String(at) };
}

export class Marks {
  constructor() {
    this.pieces = []; // {text, source, tip}, or a text that is not marked
    this.ends = []; // where each ends in the whole text
  }

  /** The tokens that come next; without `source` a text that nothing is known of. */
  add(text, source = null, tip = "") {
    if (text === "") return;
    this.ends.push((this.ends.at(-1) ?? 0) + text.length);
    this.pieces.push({ text, source, tip });
  }

  /** What shows these characters of the text. */
  nodes(from, to) {
    const found = [];
    for (let i = this.after(from); from < to && i < this.pieces.length; i++) {
      const { text, source, tip } = this.pieces[i];
      const begin = this.ends[i] - text.length;
      const shown = text.slice(from - begin, to - begin);
      from = this.ends[i];
      if (source === null) found.push(shown);
      else {
        const known = { class: "token", "data-source": source, "data-tip": tip, tabindex: "-1" };
        found.push(html("span", { ...known, ...markOf(source) }, shown));
      }
    }
    return found;
  }

  /** The piece that has the character at this place. */
  after(place) {
    let low = 0;
    let high = this.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ends[middle] > place) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

/** A text as it was written, without Markdown. */
export class AsWritten {
  constructor(root, nodes) {
    Object.assign(this, { root, nodes, at: 0, block: null, size: Infinity });
  }

  write(text) {
    const most = 8000; // characters of an element: the browser lays out long ones anew and anew
    for (let rest = text.length; rest > 0; ) {
      if (this.size >= most) {
        this.block = html("div", { class: "written" });
        this.root.append(this.block);
        this.size = 0;
      }
      const size = Math.min(rest, most - this.size);
      this.block.append(...this.nodes(this.at, this.at + size));
      this.at += size;
      this.size += size;
      rest -= size;
    }
  }
}
