// Numbers as people read them. Rates are decimal (MB/s), sizes binary (MiB), as in the commands' output.

const digits = [0, 1, 2].map((count) => new Intl.NumberFormat("en", { minimumFractionDigits: count, maximumFractionDigits: count }));

/** Three digits that count, at most. */
function short(value) {
  const size = Math.abs(value);
  return digits[size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2].format(value);
}

function scaled(value, base, units) {
  let place = 0;
  while (value >= base * 0.9995 && place < units.length - 1) {
    value /= base;
    place += 1;
  }
  return `${short(place === 0 ? Math.round(value) : value)} ${units[place]}`;
}

/** Bytes a second. */
export const rate = (value) => scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);

/** Bytes. */
export const size = (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);

/** A count, exact. */
export const count = (value) => digits[0].format(value);

/** A count, rounded: `3.2 M`. */
export const about = (value) => scaled(value, 1000, ["", "k", "M", "G", "T"]).trim();

/** A share of 1. */
export const percent = (value) => `${Math.round(value * 100)} %`;

/** A log-likelihood. */
export const logLikelihood = (value) => (value === null ? "–" : digits[2].format(value).replace("-", "−"));

/** Microseconds. */
export const time = (us) => (us >= 1e6 ? `${short(us / 1e6)} s` : us >= 1000 ? `${short(us / 1000)} ms` : `${short(us)} µs`);

/** Seconds: `2 h 5 min`. */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  if (minutes > 0) return `${minutes} min ${whole % 60} s`;
  return `${whole} s`;
}

/** `1 image`, `2 images`. */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
