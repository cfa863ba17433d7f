// Markdown, written while it comes. Whole lines are read once and stay; of the line that is not yet
// whole, what it did to the page is taken back before it is read again, and the block that it
// belongs to is shown anew. Blocks are bounded, so no answer makes this slow. HTML is text.

import { inline } from "/page/inline.js";
import { copying, html } from "/page/parts.js";

const LONGEST = 8000; // characters of a block; longer ones, and longer lines, are shown in several
const DEEPEST = 12; // quotes, lists and emphasis within each other

const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const FENCE = /^([ \t]*)(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const COLUMN = /^:?-+:?$/;

export class Markdown {
  /** root   where the blocks are appended
   *  nodes  (from, to): what shows these characters of the text */
  constructor(root, nodes) {
    this.root = root;
    this.nodes = nodes;
    this.boxes = []; // quotes and list items that are open, the outermost first
    this.leaf = null; // the block that takes lines now
    this.changed = new Set(); // leaves to show
    this.at = 0; // where the last line begins
    this.line = ""; // what is there of it
    this.taken = null; // how to take back what it did
  }

  /** More of the text. */
  write(text) {
    this.takeBack();
    const all = this.line + text;
    let begin = 0;
    for (;;) {
      const end = all.indexOf("\n", begin);
      const size = (end < 0 ? all.length : end) - begin;
      if (size > LONGEST) {
        // Not between the two halves of one character.
        const cut = begin + LONGEST - (/[\ud800-\udbff]/.test(all[begin + LONGEST - 1]) ? 1 : 0);
        this.read(all.slice(begin, cut), false);
        this.at += cut - begin;
        begin = cut;
      } else if (end < 0) break;
      else {
        this.read(all.slice(begin, end), true);
        this.at += size + 1;
        begin = end + 1;
      }
    }
    this.line = all.slice(begin);
    if (this.line !== "") {
      const { boxes, leaf } = this;
      this.taken = [() => Object.assign(this, { boxes, leaf })];
      this.read(this.line, false);
    }
    for (const leaf of this.changed) {
      this.show(leaf.element, leaf.parts);
    }
    this.changed.clear();
  }

  takeBack() {
    const taken = this.taken ?? [];
    this.taken = null;
    while (taken.length > 0) taken.pop()();
  }

  /** Append an element, until it is taken back. */
  add(parent, element) {
    parent.append(element);
    this.taken?.push(() => element.remove());
    return element;
  }

  /** A line, which begins at `this.at`; whether its end is known. */
  read(line, whole) {
    let i = 0;
    let kept = 0;
    for (const box of this.boxes) {
      const size = box.goesOn(line.slice(i));
      if (size < 0) break;
      i += size;
      kept += 1;
    }
    const inside = kept === this.boxes.length;
    if (this.leaf?.kind === "code" && inside) return this.readCode(line, i, whole);
    const boxes = this.boxes.slice(0, kept);
    const before = this.boxes[kept]; // of which a list may go on
    const text = inside && this.leaf?.kind === "text";
    for (let box; boxes.length < DEEPEST && (box = this.begun(line.slice(i), boxes, before, text)); ) {
      boxes.push(box);
      i += Math.min(box.size, line.length - i);
    }
    const rest = line.slice(i);
    const more = boxes.length > kept;
    if (rest.trim() === "") {
      this.leaf = null;
      this.boxes = boxes;
    } else if (!more && this.goesOn(rest, i, inside)) {
      return; // with the leaf, also of a quote that is not marked any more
    } else {
      this.boxes = boxes;
      this.leaf = this.begin(boxes.at(-1)?.element ?? this.root, rest, i);
    }
  }

  /** A quote or a list item that begins a line. */
  begun(line, boxes, before, text) {
    const parent = boxes.at(-1)?.element ?? this.root;
    const quote = QUOTE.exec(line);
    if (quote) {
      const element = this.add(parent, html("blockquote"));
      return { element, size: quote[0].length, goesOn: (rest) => QUOTE.exec(rest)?.[0].length ?? -1 };
    }
    const item = RULE.test(line) ? null : ITEM.exec(line);
    if (!item) return null;
    const [all, space, sign] = item;
    const ordered = sign.length > 1;
    const kind = sign.at(-1);
    const follows = before?.kind === kind && before.list.parentElement === parent;
    if (text && ordered && sign !== `1${kind}` && !follows) return null; // a number in a sentence
    if (text && all.length === line.length) return null;
    const start = ordered && sign !== `1${kind}` ? { start: parseInt(sign, 10) } : {};
    const list = follows ? before.list : this.add(parent, html(ordered ? "ol" : "ul", start));
    const indent = Math.min(all.length, space.length + sign.length + 4);
    const goesOn = (rest) => {
      const blank = rest.length - rest.trimStart().length;
      return blank >= indent ? indent : blank === rest.length ? blank : -1;
    };
    return { element: this.add(list, html("li")), list, kind, size: indent, goesOn };
  }

  /** Whether the line belongs to the leaf. */
  goesOn(rest, i, inside) {
    const leaf = this.leaf;
    if (leaf?.kind === "table" && inside && rest.includes("|")) {
      this.row(leaf, rest, i, "td");
      return true;
    }
    if (leaf?.kind !== "text" || FENCE.test(rest) || HEADING.test(rest)) return false;
    if (inside && leaf.parts.length === 1 && this.table(leaf, rest)) return true;
    if (RULE.test(rest) || leaf.size + rest.length > LONGEST) return false;
    this.put(leaf, rest, i);
    return true;
  }

  /** A new leaf. */
  begin(parent, rest, i) {
    const fence = FENCE.exec(rest);
    const heading = HEADING.exec(rest);
    if (fence) return this.code(parent, fence);
    if (RULE.test(rest)) {
      this.add(parent, html("hr"));
      return null;
    }
    const size = heading ? heading[0].length : 0;
    const name = heading ? `h${Math.min(heading[1].length + 2, 6)}` : "p"; // below the page's own
    const element = this.add(parent, html(name));
    const leaf = { kind: "text", element, parts: [], size: 0 };
    this.put(leaf, rest.slice(size), i + size);
    return heading ? null : leaf;
  }

  put(leaf, text, i) {
    leaf.parts.push({ from: this.at + i, text });
    leaf.size += text.length + 1;
    this.changed.add(leaf);
    this.taken?.push(() => {
      leaf.parts.pop();
      leaf.size -= text.length + 1;
      this.changed.add(leaf);
    });
  }

  code(parent, [, indent, fence, about]) {
    const language = about.trim().split(/\s/)[0];
    const element = html("code");
    const copy = copying("Copy the code", () => element.textContent);
    const label = html("figcaption", {}, html("span", {}, language || "code"), copy);
    const pre = html("pre", { tabindex: "0", role: "group", "aria-label": `Code: ${language || "text"}` }, element);
    this.add(parent, html("figure", { class: "code" }, label, pre));
    return { kind: "code", element, indent: indent.length, fence, block: null, size: LONGEST };
  }

  readCode(line, i, whole) {
    const leaf = this.leaf;
    const rest = line.slice(i);
    const end = rest.trim();
    if (end.length >= leaf.fence.length && end === leaf.fence[0].repeat(end.length)) {
      this.leaf = null;
      return;
    }
    const blank = rest.length - rest.trimStart().length;
    const from = this.at + i + Math.min(blank, leaf.indent);
    const to = this.at + line.length + (whole ? 1 : 0);
    if (this.taken) {
      // The line is shown alone: only whole ones are part of a block.
      this.add(leaf.element, html("span", { class: "lines" }, ...this.nodes(from, to)));
      return;
    }
    if (leaf.size + to - from > LONGEST) {
      leaf.block = html("span", { class: "lines" });
      leaf.element.append(leaf.block);
      leaf.size = 0;
    }
    leaf.size += to - from;
    leaf.block.append(...this.nodes(from, to));
  }

  /** Whether the line makes a table of the one before it, its columns' names. */
  table(leaf, rest) {
    const columns = cells(rest.trim()).map(({ text }) => text.trim());
    const names = cells(leaf.parts[0].text);
    if (!rest.includes("|") || columns.length !== names.length) return false;
    if (!columns.every((column) => COLUMN.test(column))) return false;
    const table = html("table");
    const element = html("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" }, table);
    const named = { kind: "table", head: table.createTHead(), body: table.createTBody(), columns };
    const paragraph = leaf.element;
    paragraph.replaceWith(element);
    this.taken?.push(() => element.replaceWith(paragraph));
    this.row({ ...named, body: named.head }, leaf.parts[0].text, leaf.parts[0].from - this.at, "th");
    this.leaf = named;
    return true;
  }

  row({ body, columns }, text, i, name) {
    const row = html("tr");
    cells(text).forEach(({ from, text: inside }, at) => {
      const side = /:$/.test(columns[at] ?? "") ? (columns[at][0] === ":" ? "middle" : "end") : "";
      const cell = html(name, side ? { class: side } : {});
      this.show(cell, [{ from: this.at + i + from, text: inside }]);
      row.append(cell);
    });
    this.add(body, row);
  }

  /** Show the text of a leaf: parts of the whole text, which are lines. */
  show(element, parts) {
    const whole = html("div");
    const text = parts.map((part) => part.text).join("\n");
    const into = [whole];
    let unseen = 0; // elements that are too deep
    let part = 0;
    let start = 0; // of the part
    let at = 0;
    const upTo = (end) => {
      while (at < end) {
        while (at > start + parts[part].text.length) start += parts[part++].text.length + 1;
        const stop = Math.min(end, start + parts[part].text.length + 1);
        const { from } = parts[part];
        into.at(-1).append(...this.nodes(from + at - start, from + stop - start));
        at = stop;
      }
    };
    for (const mark of inline(text)) {
      upTo(mark.at);
      if (mark.open && into.length > DEEPEST) unseen += 1;
      else if (mark.open) into.push(begin(into.at(-1), mark));
      else if (mark.close && unseen > 0) unseen -= 1;
      else if (mark.close) into.pop();
      at = Math.max(at, mark.at + mark.skip);
    }
    upTo(text.length);
    element.replaceChildren(...whole.childNodes);
  }
}

function begin(parent, { open, href }) {
  const link = href && { href, target: "_blank", rel: "noopener noreferrer nofollow", title: href };
  const element = html(open, link ?? {});
  parent.append(element);
  return element;
}

/** The cells of a table's row, and where each begins. */
function cells(line) {
  const found = [];
  let from = line.length - line.trimStart().length;
  if (line[from] === "|") from += 1;
  let ticks = false;
  for (let i = from; i < line.length; i++) {
    if (line[i] === "\\") i += 1;
    else if (line[i] === "`") ticks = !ticks;
    else if (line[i] === "|" && !ticks) {
      found.push({ from, text: line.slice(from, i) });
      from = i + 1;
    }
  }
  if (line.slice(from).trim() !== "") found.push({ from, text: line.slice(from) });
  return found;
}
