// What Python found in a trace, as it travels: answer/findings.py writes it. Types and words; no DOM.

import { bytes } from "./format.js";

export interface Finding {
  kind: string;
  title: string;
  bytes: number;
  /** By how much it grows a step; 0 where it does not. */
  bytes_per_step: number;
  /** What the advice should save; 0 where that cannot be said. */
  saves: number;
  /** The evidence leaves no other reading. */
  certain: boolean;
  /** A healthy run has it too. */
  expected: boolean;
  /** The user's line; empty for none. */
  label: string;
  source: string;
  /** Block ids, the largest of `n_blocks`. */
  blocks: number[];
  n_blocks: number;
  moment: number;
  /** Moments between which it shows. */
  window: [number, number] | null;
  evidence: string[];
  advice: string;
  /** Call sites with a share in it and their bytes, a step where it grows. */
  lines: [string, number][];
}

/** Of a kind: a sign and a word. */
const KINDS: Record<string, readonly [string, string]> = {
  oom: ["✕", "Out of memory"],
  growth: ["↗", "Growth"],
  held: ["■", "Still held"],
  fragmentation: ["▤", "Fragmentation"],
  spike: ["▲", "Short peak"],
  pending_free: ["◷", "Waiting frees"],
  pool: ["◫", "Private pool"],
  cache: ["○", "Cache"],
  outside: ["◇", "Outside torch"],
  step: ["┌", "First step"],
  baseline: ["▁", "Baseline"],
};

export function kindWords(kind: string): readonly [string, string] {
  return KINDS[kind] ?? ["•", kind.replaceAll("_", " ")];
}

/** How many need attention: what a healthy run has too does not count. */
export function attention(findings: readonly Finding[]): number {
  return findings.filter((finding) => !finding.expected).length;
}

/** "2.00 MiB a step, 72.0 MiB in all". */
export function amountWords(finding: Finding): readonly string[] {
  const { bytes: all, bytes_per_step: step, saves } = finding;
  return [
    step > 0 ? `+${bytes(step)} a step` : all > 0 ? bytes(all) : "",
    step > 0 ? `${bytes(all)} in all` : "",
    saves > 0 && !finding.expected ? `up to ${bytes(saves)} to save` : "",
  ].filter(Boolean);
}
