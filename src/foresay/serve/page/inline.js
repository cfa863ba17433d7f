// Emphasis, code and links within the text of one block. What is found are places in the text, so
// that the tokens that were written there can be shown between them. No part of the text is looked
// at more than a few times, whatever it is.

const SAFE = new Set(["http:", "https:", "mailto:"]);
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPACE = /\s/;
const URL_THERE = /https?:\/\/[^\s<>"'`[\]*|]+/y;
const BRACKETED_URL = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const DESTINATION = /<?((?:[^\s()<>\\]|\\.|\([^\s()]*\))*)>?(?:\s+"[^"\n]*")?\s*\)/y;
const LINK = "a";

/** The marks of a text, by place: at each, `skip` characters are not shown, and an element begins
 *  (`open`: its name, `href`) or ends (`close`). Elements are properly nested. */
export function inline(text) {
  const { found, escapes } = codeAndLinks(text);
  const marks = [...escapes];
  const regions = [[0, text.length]];
  for (const { from, inner, to, name, href } of found) {
    marks.push({ at: from, skip: inner[0] - from, open: name, href });
    marks.push({ at: inner[1], skip: to - inner[1], close: true });
    if (text[inner[0] - 1] === "[") regions.push(inner); // a label; an address has no emphasis
  }
  const closed = new Map(found.map((one) => [one.from, one]));
  const escaped = new Set(escapes.map(({ at }) => at));
  for (const [from, to] of regions) marks.push(...emphasis(text, from, to, closed, escaped));
  return marks.sort((a, b) => a.at - b.at || Boolean(a.open) - Boolean(b.open) || a.skip - b.skip);
}

function codeAndLinks(text) {
  const found = [];
  const escapes = [];
  const ticks = tickRuns(text);
  let brackets = [];
  const add = (from, inner, to, name, href) => (found.push({ from, inner, to, name, href }), to);
  for (let i = 0; i < text.length; ) {
    const sign = text[i];
    if (sign === "\\" && ESCAPABLE.test(text[i + 1] ?? "")) {
      escapes.push({ at: i, skip: 1 });
      i += 2;
    } else if (sign === "`") {
      const size = runAt(text, i);
      const end = nextRun(ticks, size, i + size);
      if (end < 0) i += size;
      else {
        const inside = text.slice(i + size, end);
        const pad = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim() !== "" ? 1 : 0;
        i = add(i, [i + size + pad, end - pad], end + size, "code");
      }
    } else if (sign === "[") {
      brackets.push(i++);
    } else if (sign === "]") {
      const open = brackets.pop();
      const link = open === undefined || text[i + 1] !== "(" ? null : matched(DESTINATION, text, i + 2);
      const href = link && safe(link[1].replace(/\\(.)/g, "$1"));
      if (!href) {
        i += 1;
        continue;
      }
      while (found.at(-1)?.name === LINK && found.at(-1).from > open) found.pop();
      brackets = []; // a link has no links around it
      const from = text[open - 1] === "!" ? open - 1 : open; // of an image its text is shown
      i = add(from, [open + 1, i], i + 2 + link[0].length, LINK, href);
    } else if (sign === "<") {
      const link = matched(BRACKETED_URL, text, i);
      const href = link && safe(link[1]);
      const size = link?.[0].length;
      i = href ? add(i, [i + 1, i + size - 1], i + size, LINK, href) : i + 1;
    } else if (sign === "h" && !/\w/.test(text[i - 1] ?? " ")) {
      const url = withoutEnd(matched(URL_THERE, text, i)?.[0] ?? "");
      const href = url && safe(url);
      i = href ? add(i, [i, i + url.length], i + url.length, LINK, href) : i + 1;
    } else {
      i += 1;
    }
  }
  return { found, escapes };
}

/** An address without what is rather the sentence's. */
function withoutEnd(url) {
  let end = url.length;
  while (".,;:!?)_~".includes(url[end - 1] ?? " ")) end -= 1;
  return url.slice(0, end);
}

/** The address, if a link may lead there. */
function safe(address) {
  try {
    return SAFE.has(new URL(address).protocol) ? address : null;
  } catch {
    return null; // also what would lead into this server
  }
}

function emphasis(text, from, to, closed, escaped) {
  const marks = [];
  const waiting = []; // openers
  const count = { "*": 0, _: 0, "~": 0 };
  for (let i = from; i < to; ) {
    const whole = closed.get(i);
    const sign = text[i];
    if (whole) i = whole.to;
    else if (escaped.has(i)) i += 2;
    else if (!(sign in count)) i += 1;
    else {
      let left = Math.min(runAt(text, i), to - i);
      const end = i + left;
      const { opens, closes } = flanks(sign, i > from ? text[i - 1] : " ", end < to ? text[end] : " ");
      const usable = sign !== "~" || left === 2;
      while (usable && closes && left > 0 && count[sign] > 0) {
        while (waiting.at(-1).sign !== sign) count[waiting.pop().sign] -= 1;
        const opener = waiting.at(-1);
        if ((opens || opener.closes) && (opener.whole + end - i) % 3 === 0 && (end - i) % 3) break;
        const used = Math.min(opener.size, left, 2);
        opener.size -= used;
        const open = sign === "~" ? "del" : used === 2 ? "strong" : "em";
        marks.push({ at: opener.at + opener.size, skip: used, open });
        marks.push({ at: end - left, skip: used, close: true });
        left -= used;
        if (opener.size === 0) count[waiting.pop().sign] -= 1;
      }
      if (usable && opens && left > 0) {
        waiting.push({ sign, at: end - left, size: left, whole: end - i, closes });
        count[sign] += 1;
      }
      i = end;
    }
  }
  return marks;
}

/** Whether emphasis can begin or end between these characters. */
function flanks(sign, before, after) {
  const blank = [SPACE.test(before), SPACE.test(after)];
  const dotted = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
  const left = !blank[1] && (!dotted[1] || blank[0] || dotted[0]);
  const right = !blank[0] && (!dotted[0] || blank[1] || dotted[1]);
  if (sign !== "_") return { opens: left, closes: right };
  return { opens: left && (!right || dotted[0]), closes: right && (!left || dotted[1]) };
}

function matched(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/** How often the character at a place follows itself. */
function runAt(text, at) {
  let end = at + 1;
  while (end < text.length && text[end] === text[at]) end += 1;
  return end - at;
}

/** Where runs of backticks begin, by their length. */
function tickRuns(text) {
  const runs = new Map();
  for (let i = text.indexOf("`"); i >= 0; ) {
    const size = runAt(text, i);
    if (!runs.has(size)) runs.set(size, { places: [], next: 0 });
    runs.get(size).places.push(i);
    i = text.indexOf("`", i + size);
  }
  return runs;
}

/** The first run of this length from a place on; places are asked for in rising order. */
function nextRun(runs, size, from) {
  const known = runs.get(size);
  if (!known) return -1;
  while (known.places[known.next] < from) known.next += 1;
  return known.places[known.next] ?? -1;
}
