// Asks the server for a snapshot every few seconds and shows it.  Nothing is built from text: names come from tenants.

import { LineChart } from "./chart.js";
import { bytes, clock, count, percent, seconds } from "./format.js";

const $ = (id) => document.getElementById(id);
const TOKEN = "lmcache-token";

function element(name, { text, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function tag(word, kind) {
  return element("span", { className: `tag ${kind}`, text: word });
}

const STATES = {
  good: new Set(["ok", "active", "running", "serving", "added", "in_use", "closed", "healthy", "done"]),
  bad: new Set(["stuck", "failing", "down", "failed", "broken", "open", "ended", "degraded", "critical", "warning"]),
};

function state(word) {
  if (!word) return "–";
  return tag(word, STATES.good.has(word) ? "good" : STATES.bad.has(word) ? "bad" : "warn");
}

// --- tables

const sorting = {};

function cells(row, columns) {
  return columns.map(({ key, show, number, name }) => {
    const cell = element("td", { className: number ? "number" : name ? "name" : "" });
    const shown = show ? show(row[key], row) : row[key];
    cell.append(shown === null || shown === undefined || shown === "" ? "–" : shown);
    return cell;
  });
}

function table(id, columns, rows, empty) {
  const home = $(id);
  const by = sorting[id];
  const ordered = by === undefined ? rows : [...rows].sort((one, other) => by.sign * compare(one[by.key], other[by.key]));
  const heads = columns.map(({ key, title, number }) => {
    const head = element("th", { scope: "col", className: number ? "number" : "" });
    const button = element("button", { type: "button", text: title });
    button.addEventListener("click", () => {
      sorting[id] = { key, sign: sorting[id]?.key === key ? -sorting[id].sign : number ? -1 : 1 };
      table(id, columns, rows, empty);
      home.querySelectorAll("th button")[columns.findIndex((each) => each.key === key)].focus();
    });
    if (by?.key === key) head.setAttribute("aria-sort", by.sign < 0 ? "descending" : "ascending");
    head.append(button);
    return head;
  });
  const focused = [...home.querySelectorAll("th button")].indexOf(document.activeElement);
  const body = ordered.map((row) => element("tr", {}, ...cells(row, columns)));
  if (!body.length) body.push(element("tr", {}, element("td", { className: "empty", colSpan: columns.length, text: empty })));
  home.replaceChildren(home.caption, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
  if (focused >= 0) home.querySelectorAll("th button")[focused]?.focus();
}

function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return -1;
  if (other === null || other === undefined) return 1;
  return one < other ? -1 : 1;
}

// --- sections

const hitChart = new LineChart($("hit-chart"), {
  title: "Hit rate of the last hour",
  series: [
    { key: "actual", label: "hit rate", line: "actual" },
    { key: "ceiling", label: "with an infinite cache", line: "ceiling" },
  ],
  format: percent,
  clock,
  max: 1,
});
const trafficChart = new LineChart($("traffic-chart"), {
  title: "Bytes per second of the last hour",
  series: [
    { key: "retrieved", label: "read by engines", line: "actual" },
    { key: "stored", label: "stored by engines", line: "ceiling" },
    { key: "loaded", label: "loaded from L2", line: "third" },
  ],
  format: (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`),
  clock,
  max: null,
});

function figure(value, label) {
  return element("div", { className: "figure" }, element("strong", { text: value }), element("span", { text: label }));
}

function showServer({ server }) {
  const up = server.uptime_seconds;
  $("server").textContent = `${server.instance_id} · ${server.version} · up ${seconds(up)} · ${server.engine_endpoint}`;
  const health = $("health");
  const healthy = server.state === "healthy";
  const words = healthy ? server.state : `${server.state}: ${server.reason}`;
  if (health.textContent !== words) health.textContent = words; // said once, not at every refresh
  health.className = `badge ${healthy ? "good" : "bad"}`;
  document.title = `${healthy ? "" : "! "}KV cache ${server.instance_id.slice(0, 8)}`;
}

// Nothing known is not the same as nothing there.
const UNKNOWN = {
  metrics: "hit rate, ceiling and the curves",
  slow_requests: "slow requests",
  recent_events: "events",
};

function showMissing({ missing }) {
  const note = $("missing");
  const words = missing.map((name) => `${UNKNOWN[name]} (subscriber ${name})`).join(", ");
  note.hidden = !words;
  const text = words ? `Not known, because it is switched off or failed: ${words}.` : "";
  if (note.textContent !== text) note.textContent = text;
}

function showHits({ hit_rate: rate, served, traffic, missing }) {
  const off = missing.includes("metrics");
  const { actual, ceiling, window } = rate;
  const gap = actual === null || ceiling === null ? null : Math.max(0, ceiling - actual);
  $("hit-figures").replaceChildren(
    figure(percent(actual), off ? "hit rate: not known without metrics" : `hit rate, ${window}`),
    figure(percent(ceiling), "what an infinite cache would hit"),
    figure(percent(served.l1), "of chunks served from L1, since the start"),
    figure(percent(served.l2), "served from L2, since the start"),
    figure(count(traffic.lookups_per_second), "lookups per second"),
    figure(seconds(traffic.slowest_seconds), "the longest that a request waited of late"),
  );
  $("hit-note").textContent =
    off
      ? "Metrics are off."
      : gap === null
      ? "No lookups in this window yet."
      : gap < 0.02
        ? "A bigger cache would bring almost nothing: what is asked for again is still here."
        : `A bigger cache could bring up to ${percent(gap)} more: chunks that were asked for again had left.`;
  hitChart.show(rate.history, off ? "not known without metrics" : "waiting for a second sample");
  trafficChart.show(traffic.history, off ? "not known without metrics" : "waiting for a second sample");
}

const SLOTS = [
  ["cached", "cached"],
  ["held", "held for requests and stores"],
  ["quarantined", "quarantined"],
];

function showL1({ l1 }) {
  const taken = SLOTS.reduce((sum, [state]) => sum + l1.slots[state], 0);
  const full = l1.used_bytes / (l1.capacity_bytes || 1);
  const bar = element("div", { className: "bar" });
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", `${percent(full)} used; slots: ${SLOTS.map(([state, word]) => `${count(l1.slots[state])} ${word}`).join(", ")}`);
  const legend = element("ul", { className: "legend" });
  for (const [slots, word] of SLOTS) {
    const piece = element("i", { className: `fill-${slots}` });
    piece.style.width = `${taken ? (100 * full * l1.slots[slots]) / taken : 0}%`;
    bar.append(piece);
    legend.append(element("li", {}, element("i", { className: `fill-${slots}` }), `${count(l1.slots[slots])} slots ${word}`));
  }
  const facts = [`${count(l1.evicted)} evicted`, `${count(l1.refused)} chunks refused for want of room`, `${l1.policy} eviction`];
  $("l1").replaceChildren(
    element("h3", { text: `L1: ${bytes(l1.used_bytes)} of ${bytes(l1.capacity_bytes)} (${percent(full)})` }),
    bar,
    legend,
    element("p", { className: "quiet", text: facts.join(" · ") }),
  );
}

function used(value, row, limit) {
  return limit ? `${bytes(value)} of ${bytes(limit)}` : bytes(value);
}

const CONDITIONS = [
  { key: "severity", title: "Severity", show: (word) => (word === "info" ? tag(word, "plain") : state(word)) },
  { key: "subject", title: "What", name: true },
  { key: "reason", title: "Why" },
  { key: "remedy", title: "What to do" },
  { key: "since", title: "Since", show: clock },
  { key: "name", title: "Condition" },
];
const ADAPTERS = [
  { key: "name", title: "Adapter", name: true, show: (name, row) => (name === row.type ? name : `${name} (${row.type})`) },
  { key: "state", title: "State", show: state },
  { key: "circuit", title: "Circuit", show: (word) => (word ? state(word) : "–") },
  { key: "used_bytes", title: "Holds", number: true, show: (value, row) => used(value, row, row.capacity_bytes) },
  { key: "queue_objects", title: "Waiting", number: true, show: (value, row) => `${count(value)} (${bytes(row.queue_bytes)})` },
  { key: "oldest_seconds", title: "Oldest", number: true, show: seconds },
  { key: "in_flight", title: "In flight", number: true, show: count },
  { key: "stored", title: "Stored", number: true, show: count },
  { key: "loaded", title: "Loaded", number: true, show: count },
  { key: "failed", title: "Failed", number: true, show: count },
  { key: "dropped", title: "Dropped", number: true, show: count },
];
const TENANTS = [
  { key: "salt", title: "Salt", name: true, show: (salt) => (salt === "_default" ? "_default (none)" : salt) },
  { key: "lookups", title: "Lookups", number: true, show: count },
  { key: "hit_rate", title: "Hit rate", number: true, show: percent },
  { key: "ceiling", title: "Ceiling", number: true, show: percent },
  { key: "hit_l1_tokens", title: "Tokens from L1", number: true, show: count },
  { key: "hit_l2_tokens", title: "Tokens from L2", number: true, show: count },
  { key: "used_bytes", title: "In L1", number: true, show: bytes },
  { key: "limit_bytes", title: "Quota", number: true, show: (value) => (value === null ? "none" : bytes(value)) },
];
const PLUGINS = [
  { key: "name", title: "Plugin", name: true },
  { key: "version", title: "Version" },
  { key: "status", title: "Status", show: (word, row) => (row.error ? element("span", { title: row.error }, state(word)) : word === "available" ? tag(word, "plain") : state(word)) },
  { key: "error", title: "Why" },
];
const SUBSCRIBERS = [
  { key: "name", title: "Subscriber", name: true },
  { key: "state", title: "State", show: state },
  { key: "waiting", title: "Waiting", number: true, show: count },
  { key: "dropped", title: "Dropped", number: true, show: count },
  { key: "failed", title: "Failed", number: true, show: count },
  { key: "cpu_seconds", title: "CPU", number: true, show: seconds },
];
const WORKERS = [
  { key: "instance_id", title: "Worker", name: true },
  { key: "model_name", title: "Model" },
  { key: "identity", title: "Identity" },
  { key: "world_size", title: "Shards", number: true },
  { key: "silent_seconds", title: "Silent for", number: true, show: seconds },
];
const THREADS = [
  { key: "name", title: "Thread", name: true },
  { key: "state", title: "State", show: state },
  { key: "restarts", title: "Restarts", number: true, show: count },
  { key: "last_error", title: "Last error" },
];

function showSlow({ slow_requests: requests, missing }) {
  const home = $("slow");
  const opened = new Set([...home.querySelectorAll("details[open]")].map((each) => each.dataset.id));
  const focused = document.activeElement?.closest?.("#slow details")?.dataset.id;
  const made = requests.map((request) => {
    const head = element(
      "summary",
      {},
      element("strong", { text: seconds(request.seconds) }),
      element("span", { text: request.model }),
      element("span", { text: request.requested_chunks === null ? "" : `${count(request.hit_chunks)} of ${count(request.requested_chunks)} chunks hit` }),
      element("span", { className: "quiet", text: `${clock(request.at)} · ${request.request_id}` }),
    );
    const list = element("ol", { className: "spans" });
    for (const span of request.spans) {
      const lane = element("span", { className: "lane" });
      const piece = element("i");
      piece.style.left = `${(100 * span.offset_seconds) / (request.span_seconds || 1)}%`;
      piece.style.width = `${(100 * span.seconds) / (request.span_seconds || 1)}%`;
      lane.append(piece);
      if (span.fault) piece.classList.add("fault");
      list.append(element("li", {}, element("span", { text: span.fault ? `${span.name}: ${span.fault}` : span.name }), lane, element("span", { className: "time", text: seconds(span.seconds) })));
    }
    const details = element("details", { className: "card", open: opened.has(request.request_id) }, head, list);
    details.dataset.id = request.request_id;
    return details;
  });
  home.replaceChildren(...(made.length ? made : [element("p", { className: "quiet", text: missing.includes("slow_requests") ? "Not known." : "No request has been finished of late." })]));
  if (focused) home.querySelector(`details[data-id="${CSS.escape(focused)}"] summary`)?.focus();
}

function showEvents({ events, missing }) {
  const rows = events.map((event) =>
    element(
      "li",
      {},
      element("time", { dateTime: new Date(event.at * 1000).toISOString(), text: clock(event.at) }),
      element("strong", { text: event.kind }),
      element("span", { text: event.times > 1 ? `${event.text} (${count(event.times)} times since ${clock(event.first)})` : event.text }),
    ),
  );
  $("event-list").replaceChildren(...(rows.length ? rows : [element("li", { text: missing.includes("recent_events") ? "Not known." : "Nothing has happened that an operator should know." })]));
}

function show(snapshot) {
  showServer(snapshot);
  showMissing(snapshot);
  table("condition-table", CONDITIONS, snapshot.conditions, "Nothing is known to be wrong.");
  showHits(snapshot);
  showL1(snapshot);
  table("adapters", ADAPTERS, snapshot.adapters, "There is no L2 adapter: what leaves L1 is gone.");
  table("tenant-table", TENANTS, snapshot.tenants, "No request yet.");
  showSlow(snapshot);
  showEvents(snapshot);
  table("plugins", PLUGINS, snapshot.plugins, "No plugin.");
  table("subscribers", SUBSCRIBERS, snapshot.subscribers, "Nobody listens to events.");
  table("workers", WORKERS, snapshot.workers, "No engine is connected.");
  table("threads", THREADS, snapshot.threads, "No thread.");
}

// --- asking

let timer;
let asking = false;

function complain(words) {
  const problem = $("problem");
  problem.hidden = !words;
  if (problem.textContent !== words) problem.textContent = words;
}

function askForToken(wrong) {
  const dialog = $("login");
  const problem = $("login-problem");
  problem.hidden = !wrong;
  problem.textContent = wrong ? "That is not the token of this server." : "";
  if (!dialog.open) dialog.showModal();
}

async function refresh() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  const token = sessionStorage.getItem(TOKEN);
  try {
    const answer = await fetch("/dashboard/data", {
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      cache: "no-store",
      signal: AbortSignal.timeout(10000),
    });
    if (answer.status === 401) {
      askForToken(token !== null);
      return;
    }
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    show(await answer.json());
    complain("");
  } catch (error) {
    complain(`No news since ${new Date().toLocaleTimeString([], { hour12: false })}: ${error.message}. What is shown may be old.`);
  } finally {
    asking = false;
    if (!$("login").open) plan();
  }
}

function plan() {
  clearTimeout(timer);
  const period = Number($("period").value);
  if (period && !document.hidden) timer = setTimeout(refresh, period * 1000);
}

$("login").addEventListener("close", () => {
  sessionStorage.setItem(TOKEN, $("token").value.trim());
  $("token").value = "";
  refresh();
});
$("login").addEventListener("cancel", (event) => event.preventDefault());
$("period").addEventListener("change", refresh);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));

const theme = $("theme");
const wanted = matchMedia("(prefers-color-scheme: dark)");
function dress() {
  const dark = theme.value === "dark" || (theme.value === "auto" && wanted.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
theme.value = localStorage.getItem("lmcache-theme") ?? "auto";
theme.addEventListener("change", () => {
  localStorage.setItem("lmcache-theme", theme.value);
  dress();
});
wanted.addEventListener("change", dress);
dress();
refresh();
