// What the server does, beside the chat: the last answer's own numbers, and pictures of all steps.

import { get } from "/page/api.js";
import { curve, histogram, phaseLegend, shares, timeline } from "/page/charts.js";

const $ = (id) => document.getElementById(id);
const SOON = 500; // milliseconds between two looks at the numbers while something runs
const LATER = 2000;
const KEPT = 120; // seconds of the curves
const WHOSE = {
  everybody: "This server has no keys: the numbers are of everybody's requests.",
  tenant: "The numbers are of requests with your key, and with others of the same tenant.",
};
const percent = (share) => `${Math.round(100 * share)} %`;

export class Numbers {
  /** runs    whether an answer is being written
   *  hidden  called with the sentence of a server that hides its numbers */
  constructor(runs, hidden) {
    this.runs = runs;
    this.hidden = hidden;
    this.off = false;
    this.timer = null;
    this.seen = []; // {at, tokens, drafted, accepted}: the sums, and when they were so
    phaseLegend($("phases"));
  }

  /** The headline is this answer's, while it is written and afterwards. */
  headline(answer, ended) {
    const { tokens, steps, drafted, accepted, seconds } = answer;
    $("whole").textContent = ended ? "The last answer" : "This answer";
    $("rate").textContent = seconds > 0 && tokens > 0 ? (tokens / seconds).toFixed(1) : "–";
    $("pace").textContent = steps > 0 ? (tokens / steps).toFixed(2) : "–";
    $("share").textContent = drafted > 0 ? percent(accepted / drafted) : "–";
    $("counts").textContent = drafted > 0 ? `${accepted} of ${drafted}` : "nothing was drafted";
    if (ended) shares($("sources"), answer.sources);
  }

  /** Look at the numbers now, and again after a while as long as somebody sees the page. */
  async look() {
    clearTimeout(this.timer);
    if (document.hidden || this.off) return;
    let wait = LATER;
    try {
      const stats = await get("/v1/spec/stats");
      this.draw(stats);
      wait = this.runs() || stats.running ? SOON : LATER;
    } catch (error) {
      if (error.status === 403) {
        this.off = true;
        return this.hidden(error.message);
      }
      $("load").textContent = error.message;
      wait = 5 * LATER;
    }
    clearTimeout(this.timer); // of a look that was begun meanwhile
    this.timer = setTimeout(() => this.look(), wait);
  }

  draw({ totals, timeline: steps, requests_of: whose, running, waiting }) {
    const { tokens, drafted, accepted } = totals;
    const { seen } = this;
    const now = performance.now() / 1000;
    if (tokens < seen.at(-1)?.tokens) seen.length = 0; // another server
    seen.push({ at: now, tokens, drafted, accepted });
    while (seen[0].at < now - KEPT) seen.shift();
    const between = (value) => seen.slice(1).map((to, i) => ({ at: to.at, value: value(seen[i], to) }));
    const rates = between((from, to) => (to.tokens - from.tokens) / (to.at - from.at));
    const lucky = between((from, to) =>
      to.drafted > from.drafted ? (to.accepted - from.accepted) / (to.drafted - from.drafted) : null);
    if ($("flow").getBoundingClientRect().width > 0) { // on a phone the chat may be in their place
      curve($("flow"), rates, now, (rate) => rate.toFixed(rate < 10 ? 1 : 0));
      curve($("luck"), lucky, now, percent, 1);
      histogram($("lengths"), totals.accepted_lengths);
      const shown = timeline($("line"), steps);
      if (shown !== null) $("span").textContent = shown > 0 ? `the last ${shown}, by time` : "none yet";
    }
    $("sums").textContent = tokens === 0 ? "No tokens yet." :
      `${tokens} tokens, ${totals.tokens_per_step.toFixed(2)} per step; ` +
      `${accepted} of ${drafted} drafts accepted.`;
    $("whose").textContent = WHOSE[whose];
    $("load").textContent = `${running} running · ${waiting} waiting`;
  }
}
