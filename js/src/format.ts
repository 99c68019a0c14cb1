/**
 * Numbers -> text.
 *
 * Owns how amounts read everywhere in the front end. Its Python twin is units.py; the rule of both: three
 * significant digits, halves away from zero, binary units.
 */

export const UNITS = ["B", "KiB", "MiB", "GiB"] as const;

/** Place in UNITS of the one that an amount is said in: 1023.5 KiB would read "1024 KiB", that is 1.00 MiB. */
export function unitOf(amount: number): number {
  let unit = 0;
  for (let value = Math.abs(amount); value >= 1023.5 && unit < UNITS.length - 1; value /= 1024) unit++;
  return unit;
}

/** "4.45 GiB", "20.0 MiB", "512 B", "0 B". */
export function bytes(amount: number): string {
  const unit = unitOf(amount);
  const value = Math.abs(amount) / 1024 ** unit;
  const sign = amount < 0 ? "-" : "";
  return `${sign}${unit === 0 ? Math.round(value) : threeDigits(value)} ${UNITS[unit]}`;
}

/** "4,778,151,936 B". */
export function bytesExact(amount: number): string {
  return `${count(amount)} B`;
}

/** "1,480,000". */
export function count(amount: number): string {
  return Math.round(amount).toLocaleString("en-US");
}

/**
 * Microseconds as "1.25 s", "350 ms", "20 us".
 *
 * With a `step` (of an axis) the unit and the decimals are those that tell neighbours apart: "1.250 s".
 */
export function duration(us: number, step?: number): string {
  const size = Math.abs(us);
  if (step !== undefined) {
    const [scale, unit] = step >= 100_000 ? [1e6, "s"] : step >= 100 ? [1e3, "ms"] : [1, "µs"];
    const decimals = Math.max(0, Math.min(6, -Math.floor(Math.log10(step / scale) + 1e-9)));
    return `${(us / scale).toFixed(decimals)} ${unit}`;
  }
  const sign = us < 0 ? "-" : "";
  if (size >= 999_500) return `${sign}${threeDigits(size / 1e6)} s`;
  if (size >= 999.5) return `${sign}${threeDigits(size / 1e3)} ms`;
  return `${sign}${Math.round(size)} µs`;
}

/** "42 %", "3.1 %", "<0.1 %". */
export function share(part: number, whole: number): string {
  if (whole <= 0) return "";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.1) return "<0.1 %";
  return `${percent < 10 ? (Math.round(percent * 10) / 10).toString() : Math.round(percent)} %`;
}

/** 1.23, 12.3, 123, 1023: halves go away from zero, since binary units make exact halves common. */
function threeDigits(value: number): string {
  const hundredths = Math.floor(value * 100 + 0.5);
  if (hundredths < 1000) return (hundredths / 100).toFixed(2);
  const tenths = Math.floor(value * 10 + 0.5);
  if (tenths < 1000) return (tenths / 10).toFixed(1);
  return Math.floor(value + 0.5).toString();
}
