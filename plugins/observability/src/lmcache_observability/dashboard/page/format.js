// Numbers as people read them.  What is not known is a dash.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let at = 0;
  let rest = value;
  while (Math.abs(rest) >= 1024 && at < BYTES.length - 1) {
    rest /= 1024;
    at += 1;
  }
  return `${at === 0 ? rest.toFixed(0) : rest.toPrecision(3)} ${BYTES[at]}`;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
}

export function count(value) {
  return value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US", { maximumFractionDigits: 1 });
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.1 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} d`;
}

export function clock(epoch) {
  return new Date(epoch * 1000).toLocaleTimeString([], { hour12: false });
}
