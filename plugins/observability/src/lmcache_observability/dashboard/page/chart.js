// A line chart that can be read by eye, by pointer and by arrow keys.

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 720;
const HEIGHT = 208;
const LEFT_PIXELS = 74;
const BOTTOM = 20;
const TOP = 6;

function node(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export class LineChart {
  // `series`: [{key, label, line}], where `line` is a class of the style sheet; `max`: a number, or null to follow the data.
  constructor(home, { title, series, format, clock, max }) {
    Object.assign(this, { title, series, format, clock, max });
    this.points = [];
    this.empty = "";
    this.at = null;
    this.svg = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", tabindex: "0", role: "slider" });
    this.said = document.createElement("output");
    this.said.setAttribute("aria-live", "off"); // the slider's own value is what is read aloud
    const legend = document.createElement("ul");
    legend.className = "legend";
    for (const { label, line } of series) {
      const item = document.createElement("li");
      const swatch = document.createElement("i");
      swatch.className = `swatch-${line}`;
      item.append(swatch, label);
      legend.append(item);
    }
    home.replaceChildren(this.svg, this.said, legend);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#select(null));
    this.svg.addEventListener("blur", () => this.#select(null));
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#draw()).observe(home);
  }

  // `points`: [{at, <key>: number or null}], oldest first; `empty`: what is said where there are none.
  show(points, empty) {
    this.empty = empty;
    const kept = this.at === null ? null : this.points[this.at]?.at;
    this.points = points;
    this.at = kept === null || kept === undefined ? null : points.findIndex((each) => each.at >= kept);
    if (this.at === -1) this.at = null;
    this.#draw();
  }

  get #top() {
    if (this.max !== null) return this.max;
    let top = 0;
    for (const point of this.points) for (const { key } of this.series) top = Math.max(top, point[key] ?? 0);
    return top > 0 ? top * 1.1 : 1;
  }

  // Room for the labels, whose size does not follow that of the picture.
  get #left() {
    return (LEFT_PIXELS * WIDTH) / (this.svg.clientWidth || WIDTH);
  }

  #x(index) {
    const first = this.points[0].at;
    const span = this.points[this.points.length - 1].at - first || 1;
    const left = this.#left;
    return left + ((this.points[index].at - first) / span) * (WIDTH - left - 4);
  }

  #y(value, top) {
    return TOP + (1 - Math.min(value / top, 1)) * (HEIGHT - TOP - BOTTOM);
  }

  #draw() {
    const { svg, points } = this;
    const top = this.#top;
    const left = this.#left;
    // text must not be stretched with the picture
    const stretch = (svg.clientWidth || WIDTH) / WIDTH / ((svg.clientHeight || HEIGHT) / HEIGHT);
    const text = (x, y, anchor, words) => {
      svg.append(node("text", { transform: `translate(${x} ${y}) scale(${1 / stretch} 1)`, "text-anchor": anchor }, words));
    };
    svg.replaceChildren();
    svg.setAttribute("aria-label", this.#summary());
    svg.setAttribute("aria-valuemin", "0");
    svg.setAttribute("aria-valuemax", String(Math.max(0, points.length - 1)));
    svg.setAttribute("aria-valuenow", String(this.at ?? Math.max(0, points.length - 1)));
    svg.setAttribute("aria-valuetext", this.said.textContent || "latest");
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const y = this.#y(share * top, top);
      svg.append(node("line", { class: "grid", x1: left, x2: WIDTH - 4, y1: y, y2: y }));
      if (share !== 0.25 && share !== 0.75) text(left - 6 / stretch, y + 4, "end", this.format(share * top));
    }
    if (points.length < 2) {
      text(WIDTH / 2, HEIGHT / 2, "middle", this.empty);
      return;
    }
    text(left, HEIGHT - 4, "start", this.clock(points[0].at));
    text(WIDTH - 4, HEIGHT - 4, "end", this.clock(points[points.length - 1].at));
    for (const { key, line } of this.series) {
      for (const run of this.#runs(key)) {
        const path = run.map((index, step) => `${step ? "L" : "M"}${this.#x(index).toFixed(1)} ${this.#y(points[index][key], top).toFixed(1)}`);
        if (line === "actual") {
          const floor = this.#y(0, top);
          const area = `${path.join("")}L${this.#x(run[run.length - 1]).toFixed(1)} ${floor}L${this.#x(run[0]).toFixed(1)} ${floor}Z`;
          svg.append(node("path", { class: "area", d: area }));
        }
        svg.append(node("path", { class: line, d: path.join("") }));
      }
    }
    if (this.at !== null) {
      const x = this.#x(this.at);
      svg.append(node("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    }
  }

  // Stretches without a gap, so that what is not known is not drawn as a line.
  #runs(key) {
    const runs = [];
    let run = [];
    this.points.forEach((point, index) => {
      if (point[key] === null || point[key] === undefined) {
        if (run.length) runs.push(run);
        run = [];
      } else {
        run.push(index);
      }
    });
    if (run.length) runs.push(run);
    return runs;
  }

  #summary() {
    const last = this.points[this.points.length - 1];
    if (!last) return `${this.title}: ${this.empty || "no data yet"}`;
    const words = this.series.map(({ key, label }) => `${label} ${this.format(last[key])}`);
    return `${this.title}, now: ${words.join(", ")}. Arrow keys read earlier values.`;
  }

  #point(event) {
    if (this.points.length < 2) return;
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    let best = 0;
    for (let index = 1; index < this.points.length; index += 1) {
      if (Math.abs(this.#x(index) - x) < Math.abs(this.#x(best) - x)) best = index;
    }
    this.#select(best);
  }

  #key(event) {
    const last = this.points.length - 1;
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: -12, PageDown: 12, Home: -last, End: last };
    if (last < 1 || !(event.key in moves)) return;
    event.preventDefault();
    this.#select(Math.max(0, Math.min(last, (this.at ?? last) + moves[event.key])));
  }

  #select(index) {
    this.at = index;
    const point = index === null ? null : this.points[index];
    this.said.textContent = point
      ? `${this.clock(point.at)}: ${this.series.map(({ key, label }) => `${label} ${this.format(point[key])}`).join(", ")}`
      : "";
    this.#draw();
  }
}
