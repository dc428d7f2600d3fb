// Asks the coordinator for its figures every few seconds and shows them.  Nothing is built from text: names come from servers
// and tenants.  Rates are between two answers, so that the coordinator keeps no history.

const $ = (id) => document.getElementById(id);
let token = ""; // in memory alone
let before = null;
let timer;
let asking = false;

// --- numbers as people read them; what is not known is a dash

const known = (value) => value !== null && value !== undefined && Number.isFinite(Number(value));
const count = (value) => (known(value) ? Number(value).toLocaleString("en-US", { maximumFractionDigits: 1 }) : "–");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytes(value) {
  if (!known(value)) return "–";
  let at = 0;
  let rest = value;
  for (; Math.abs(rest) >= 1024 && at < UNITS.length - 1; at += 1) rest /= 1024;
  return `${at === 0 ? rest.toFixed(0) : rest.toPrecision(3)} ${UNITS[at]}`;
}

function seconds(value) {
  if (!known(value)) return "–";
  if (value < 120) return `${value.toFixed(1)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} d`;
}

const clock = (epoch) => new Date(epoch * 1000).toLocaleString([], { hour12: false });

// --- tables

function element(name, { text, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

const KINDS = { live: "good", healthy: "good", silent: "bad", warning: "bad", critical: "bad", info: "plain" };
const tag = (word) => element("span", { className: `tag ${KINDS[word] ?? ""}`, text: word });

function table(id, columns, rows, empty) {
  const home = $(id);
  const heads = columns.map(({ title, kind }) => element("th", { scope: "col", className: kind ?? "", text: title }));
  const body = rows.map((row) =>
    element("tr", {}, ...columns.map(({ key, show, kind }) => {
      const shown = show ? show(row[key], row) : row[key];
      return element("td", { className: kind ?? "" }, ...(Array.isArray(shown) ? shown : [String(shown ?? "") === "" ? "–" : shown]));
    })),
  );
  if (!body.length) body.push(element("tr", {}, element("td", { className: "empty", colSpan: columns.length, text: empty })));
  const focused = document.activeElement?.dataset?.id;
  home.replaceChildren(home.caption, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
  if (focused) home.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
}

function button(word, instance, act) {
  const made = element("button", { type: "button", text: word, ariaLabel: `${word} ${instance}` });
  made.dataset.id = `${word} ${instance}`;
  made.addEventListener("click", act);
  return made;
}

const CONDITIONS = [
  { key: "severity", title: "Severity", show: tag },
  { key: "subject", title: "What", kind: "name", show: (word) => word || "fleet" },
  { key: "reason", title: "Why", kind: "long" },
  { key: "remedy", title: "What to do", kind: "long" },
  { key: "since", title: "Since", show: clock },
  { key: "name", title: "Condition" },
];
const INSTANCES = [
  { key: "instance_id", title: "Instance", kind: "name" },
  { key: "address", title: "Address" },
  { key: "workers", title: "Workers", kind: "number", show: count },
  { key: "keys", title: "Keys", kind: "number", show: count },
  { key: "gaps", title: "Gaps", kind: "number", show: count },
  { key: "silent_seconds", title: "Last heartbeat", kind: "number", show: (value) => `${seconds(value)} ago` },
  { key: "state", title: "State", show: tag },
  { key: "acts", title: "", show: (_, row) => [button("View", row.instance_id, () => view(row.instance_id)), button("Remove", row.instance_id, () => askToRemove(row.instance_id))] },
];
const WORKERS = [
  { key: "worker", title: "Worker", kind: "number" },
  { key: "instance_id", title: "Instance", kind: "name" },
  { key: "address", title: "Address" },
  { key: "port", title: "Port", kind: "number", show: (port) => port || "–" },
  { key: "state", title: "State", show: tag },
  { key: "keys", title: "Keys", kind: "number", show: count },
  { key: "silent_seconds", title: "Last heartbeat", kind: "number", show: (value) => `${seconds(value)} ago` },
];
const TENANTS = [
  { key: "salt", title: "Salt", kind: "name" },
  { key: "limit_bytes", title: "Quota", kind: "number", show: (value, row) => (known(value) ? `${bytes(value)}${row.own ? "" : " (default)"}` : "none") },
  { key: "used_bytes", title: "Used", kind: "number", show: bytes },
  { key: "share", title: "Of quota", kind: "number", show: share },
  { key: "deleted", title: "Evicted objects", kind: "number", show: count },
];

function share(_, { used_bytes: used, limit_bytes: limit }) {
  if (!known(limit)) return "–";
  if (used > limit) return element("span", { className: "tag", text: limit ? `${((100 * used) / limit).toFixed(0)} %` : "over" });
  return limit ? `${((100 * used) / limit).toFixed(1)} %` : "–";
}

const METRICS = [
  { key: "name", title: "Metric", kind: "name" },
  { key: "labels", title: "Labels" },
  { key: "value", title: "Value", kind: "number" },
];
const THREADS = [
  { key: "name", title: "Thread", kind: "name" },
  { key: "native_id", title: "Id", kind: "number" },
  { key: "python", title: "Runs", show: (yes) => (yes ? "Python" : "native code") },
  { key: "state", title: "State" },
  { key: "cpu_seconds", title: "CPU", kind: "number", show: seconds },
];
const GARBAGE = [
  { key: "generation", title: "Generation", kind: "number" },
  { key: "objects", title: "New objects", kind: "number", show: count },
  { key: "collections", title: "Collections", kind: "number", show: count },
  { key: "collected", title: "Collected", kind: "number", show: count },
  { key: "uncollectable", title: "Not collectable", kind: "number", show: count },
];
const SETTINGS = [
  { key: "name", title: "Setting", kind: "name" },
  { key: "value", title: "Value" },
  { key: "given", title: "From", show: (yes) => (yes ? "flag or environment" : "default") },
  { key: "about", title: "Meaning", kind: "long" },
];

// --- sections

const figure = (value, label) => element("div", {}, element("strong", { text: value }), element("span", { text: label }));

function showOverview({ now, overview: all }) {
  const since = before && now > before.now ? before : null;
  const rate = since ? Math.max(0, all.keys_taken - since.keys_taken) / (now - since.now) : null;
  before = { now, keys_taken: all.keys_taken };
  $("about").textContent = `${count(all.instances)} servers · up ${seconds(all.up_seconds)} · ${all.leader ? "it evicts" : "another one evicts"} · the directory takes ${bytes(all.size_bytes)}`;
  const state = $("state");
  const words = all.reason ? `${all.state}: ${all.reason}` : all.state;
  if (state.textContent !== words) state.textContent = words; // said once, not at every refresh
  state.className = `badge ${all.state === "healthy" ? "good" : "bad"}`;
  $("figures").replaceChildren(
    figure(count(all.keys), "keys in the directory"),
    figure(count(all.shared_keys), "of them in shared L2"),
    figure(rate === null ? "–" : `${count(rate)}/s`, "changes taken in"),
    figure(seconds(all.oldest_seconds), "longest since a heartbeat"),
    figure(seconds(all.quiet_seconds), "since the last change"),
    figure(count(all.gaps), "gaps in what servers sent"),
    figure(bytes(all.usage_bytes), "used of shared L2"),
    figure(count(all.deleted), "objects evicted"),
    figure(count(all.dropped), "servers dropped as silent"),
  );
}

function show(data) {
  showOverview(data);
  table("condition-table", CONDITIONS, data.conditions, "Nothing is known to be wrong.");
  table("instance-table", INSTANCES, data.instances, "No server is registered.");
  table("worker-table", WORKERS, data.workers, "No server is registered.");
  const left = data.overview.tenants - data.tenants.length;
  $("tenant-note").textContent = left > 0 ? `and ${count(left)} more: lmcache fleet usage` : "";
  table("tenant-table", TENANTS, data.tenants, "No tenant uses shared L2 or has a quota.");
  table("thread-table", THREADS, data.threads, "No thread.");
  table("garbage-table", GARBAGE, data.garbage, "Not known.");
  table("setting-table", SETTINGS, data.settings, "None.");
  table("environment-table", [{ key: "name", title: "Variable", kind: "name" }, { key: "value", title: "Value" }], data.environment, "None is set.");
}

function showMetrics(text) {
  const rows = [];
  for (const line of text.split("\n")) {
    const found = /^([A-Za-z_:][\w:]*)(\{.*\})? (\S+)/.exec(line);
    if (found) rows.push({ name: found[1], labels: found[2] ?? "", value: found[3] });
  }
  table("metric-table", METRICS, rows, "None.");
}

async function view(name) {
  try {
    const answer = await ask(`/dashboard/instances/${encodeURIComponent(name)}`);
    if (!answer.ok) throw new Error(await detail(answer));
    const facts = await answer.json();
    $("view-title").textContent = name;
    $("view-body").replaceChildren(element("pre", { text: JSON.stringify({ ...facts, registered: clock(facts.registered) }, null, 2), tabIndex: 0 }));
    $("view").showModal();
  } catch (error) {
    complain(`${name} cannot be shown: ${error.message}`);
  }
}

function askToRemove(name) {
  const dialog = $("remove");
  $("remove-title").textContent = `Remove ${name}?`;
  dialog.returnValue = "";
  dialog.dataset.instance = name;
  dialog.showModal();
}

// --- asking

function ask(path, method = "GET") {
  return fetch(path, {
    method,
    headers: token ? { Authorization: `Bearer ${token}` } : {},
    cache: "no-store",
    signal: AbortSignal.timeout(10000),
  });
}

async function detail(answer) {
  const problem = await answer.json().catch(() => ({}));
  return problem.detail ?? `the coordinator answered ${answer.status}`;
}

function complain(words) {
  const problem = $("problem");
  problem.hidden = !words;
  if (problem.textContent !== words) problem.textContent = words;
}

async function refresh() {
  clearTimeout(timer);
  if (asking || $("login").open) return;
  asking = true;
  try {
    const answer = await ask("/dashboard/data");
    if (answer.status === 401) {
      $("login-problem").hidden = !token;
      $("login").showModal();
      return;
    }
    if (!answer.ok) throw new Error(await detail(answer));
    show(await answer.json());
    const metrics = await ask("/metrics");
    if (metrics.ok) showMetrics(await metrics.text());
    complain("");
  } catch (error) {
    complain(`No news since ${new Date().toLocaleTimeString([], { hour12: false })}: ${error.message}. What is shown may be old.`);
  } finally {
    asking = false;
    plan();
  }
}

function plan() {
  clearTimeout(timer);
  const period = Number($("period").value);
  if (period && !document.hidden && !$("login").open) timer = setTimeout(refresh, period * 1000);
}

$("login").addEventListener("close", () => {
  token = $("token").value.trim();
  $("token").value = "";
  refresh();
});
$("login").addEventListener("cancel", (event) => event.preventDefault());
$("remove").addEventListener("close", async () => {
  const { returnValue, dataset } = $("remove");
  if (returnValue !== "remove") return;
  try {
    const answer = await ask(`/fleet/instances/${encodeURIComponent(dataset.instance)}`, "DELETE");
    if (!answer.ok) throw new Error(await detail(answer));
    await refresh();
  } catch (error) {
    complain(`${dataset.instance} was not removed: ${error.message}`);
  }
});
$("period").addEventListener("change", refresh);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
refresh();
