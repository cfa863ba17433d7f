// The page: a chat on one side, what the server does on the other.

import { get } from "/page/api.js";
import { curve, histogram, phaseLegend, timeline } from "/page/charts.js";
import { Conversation, RARE } from "/page/chat.js";
import { html, watch } from "/page/parts.js";
import { SOURCES } from "/page/sources.js";

const $ = (id) => document.getElementById(id);
const SOON = 500; // milliseconds between two looks at the numbers while something runs
const LATER = 2000;
const KEPT = 120; // seconds of the curves

const chat = new Conversation(hide);

async function send() {
  const question = $("question").value.trim();
  if (question === "" || chat.running) return;
  const options = { temperature: number("temperature"), max_tokens: number("most") };
  $("question").value = "";
  busy(true);
  try {
    const asked = chat.ask(question, options);
    look();
    $("said").textContent = `The answer is there: ${await asked}`;
  } catch {
    if ($("question").value === "") $("question").value = question; // to be asked again
  }
  busy(false);
  $("question").focus();
  look();
}

/** null lets the server choose. */
function number(id) {
  return $(id).value === "" ? null : $(id).valueAsNumber;
}

function busy(is) {
  $("send").disabled = is;
  $("stop").disabled = !is;
}

/** The server does not tell how many drafts were accepted. */
function hide(sentence) {
  chat.details = false;
  $("hidden").textContent = `Without marks and numbers: ${sentence}.`;
  $("hidden").hidden = false;
  $("numbers").hidden = $("legend").hidden = true;
  document.body.classList.add("plain");
}

const seen = []; // {at, tokens, drafted, accepted}: the sums, and when they were so

const WHOSE = {
  everybody: "This server has no keys: the numbers are of everybody's requests.",
  tenant: "The numbers are of requests with your key, and with others of the same tenant.",
};

function draw(stats) {
  const { tokens, drafted, accepted, ...totals } = stats.totals;
  const now = performance.now() / 1000;
  if (tokens < seen.at(-1)?.tokens) seen.length = 0; // another server
  seen.push({ at: now, tokens, drafted, accepted });
  while (seen[0].at < now - KEPT) seen.shift();
  const rates = changes((from, to) => (to.tokens - from.tokens) / (to.at - from.at));
  const shares = changes((from, to) =>
    to.drafted > from.drafted ? (to.accepted - from.accepted) / (to.drafted - from.drafted) : null);
  const percent = (share) => `${Math.round(100 * share)} %`;
  curve($("flow"), rates, now, (rate) => rate.toFixed(rate < 10 ? 1 : 0));
  curve($("luck"), shares, now, percent, 1);
  histogram($("lengths"), totals.accepted_lengths);
  const shown = timeline($("line"), stats.timeline);
  if (shown !== null) $("span").textContent = shown > 0 ? `the last ${shown}, by time` : "none yet";
  $("rate").textContent = rates.length > 0 ? rates.at(-1).value.toFixed(1) : "–";
  $("pace").textContent = totals.steps > 0 ? totals.tokens_per_step.toFixed(2) : "–";
  $("share").textContent = drafted > 0 ? percent(accepted / drafted) : "–";
  $("counts").textContent = `${accepted} of ${drafted}`;
  $("whose").textContent = WHOSE[stats.requests_of];
  $("load").textContent = `${stats.running} running · ${stats.waiting} waiting`;
}

function changes(between) {
  return seen.slice(1).map((to, i) => ({ at: to.at, value: between(seen[i], to) }));
}

let timer = null;

/** Look at the numbers now, and again after a while as long as somebody sees the page. */
async function look() {
  clearTimeout(timer);
  timer = null;
  if (document.hidden || !chat.details) return;
  try {
    const stats = await get("/v1/spec/stats");
    draw(stats);
    clearTimeout(timer); // of a look that was begun meanwhile
    timer = setTimeout(look, chat.running || stats.running ? SOON : LATER);
  } catch (error) {
    if (error.status === 403) return hide(error.message);
    $("load").textContent = error.message;
    clearTimeout(timer);
    timer = setTimeout(look, 5 * LATER);
  }
}

function start() {
  for (const name of Object.keys(SOURCES)) {
    if (RARE.includes(name)) continue;
    const mark = html("span", { class: `token ${name}` }, SOURCES[name].name);
    $("legend").append(html("li", {}, mark, ` ${SOURCES[name].about}`));
  }
  phaseLegend($("phases"));
  watch();
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") chat.stop();
  });
  $("stop").addEventListener("click", () => chat.stop());
  $("anew").addEventListener("click", () => {
    chat.clear();
    $("question").focus();
  });
  for (const idea of document.querySelectorAll("#ideas button")) {
    idea.addEventListener("click", () => {
      $("question").value = idea.textContent;
      send();
    });
  }
  document.addEventListener("visibilitychange", look);
  get("/v1/models").then(
    ({ data }) => { $("model").textContent = data[0].id; },
    (error) => { $("model").textContent = error.message; },
  );
  look();
}

start();
