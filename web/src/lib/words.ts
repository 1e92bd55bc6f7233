/** Numbers, times and durations as people read them. */

const NOTHING = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  return Math.abs(value) < 1_000_000 ? whole.format(value) : short.format(value);
}

export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  return value !== 0 && Math.abs(value) < 10 ? value.toFixed(1) : count(value);
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function milliseconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  if (value >= 1000) return `${(value / 1000).toFixed(value < 10_000 ? 1 : 0)} s`;
  if (value >= 10) return `${Math.round(value)} ms`;
  return `${value.toFixed(1)} ms`;
}

/** A length of time, in its two largest units. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NOTHING;
  if (seconds < 10) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const parts: [number, string][] = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = Math.max(
    parts.findIndex(([size]) => seconds >= size),
    0,
  );
  const [size, unit] = parts[first]!;
  const next = parts[first + 1];
  const larger = Math.floor(seconds / size);
  const rest = next ? Math.floor((seconds - larger * size) / next[0]) : 0;
  return next && rest ? `${larger} ${unit} ${rest} ${next[1]}` : `${larger} ${unit}`;
}

/** Unix time as a clock; virtual time, which begins at 0, as seconds. */
export function clock(time: number, tenths = false): string {
  if (time < 1e8) {
    const minutes = Math.floor(time / 60);
    const seconds = time - 60 * minutes;
    return `${minutes}:${tenths ? seconds.toFixed(1).padStart(4, "0") : String(Math.floor(seconds)).padStart(2, "0")}`;
  }
  const date = new Date(time * 1000);
  const text = date.toLocaleTimeString("en-GB");
  return tenths ? `${text}.${Math.floor(date.getMilliseconds() / 100)}` : text;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function percent(share: number | null | undefined): string {
  return share === null || share === undefined ? NOTHING : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}
