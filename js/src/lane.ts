/**
 * A lane of the stack: live blocks in slots, in the order in which they were added.
 *
 * Owns adding on top, taking out and adding up. A block that goes leaves its slot empty; slots are summed up by eights
 * and by sixty-fours, so that a walk up a column passes over runs that reach no pixel's centre.
 */

/** Slots in a group and in a chunk, as shifts: 8 and 64. With 50,000 live blocks a column takes 12,000 steps, not 50,000. */
export const GROUP = 3;
export const CHUNK = 6;

export class Lane {
  /** Block and bytes of a slot; -1 and 0 once it is empty. */
  id = new Int32Array(0);
  size = new Float64Array(0);
  groupSum = new Float64Array(0);
  chunkSum = new Float64Array(0);
  /** Bytes of all slots. */
  bytes = 0;
  /** Slots in use, empty ones included, and blocks in them. */
  used = 0;
  live = 0;
  /** Lowest slot that is no longer as drawn. */
  dirty = 0;

  clear(): void {
    this.groupSum.fill(0);
    this.chunkSum.fill(0);
    this.bytes = this.used = this.live = this.dirty = 0;
  }

  /** Put a block on top; `slotOf` is told where. */
  add(block: number, bytes: number, slotOf: Int32Array): void {
    if (this.used === this.id.length) this.#grow();
    this.#put(this.used++, block, bytes, slotOf);
    this.bytes += bytes;
    this.live++;
  }

  #put(slot: number, block: number, bytes: number, slotOf: Int32Array): void {
    this.id[slot] = block;
    this.size[slot] = bytes;
    slotOf[block] = slot;
    this.groupSum[slot >> GROUP] = (this.groupSum[slot >> GROUP] as number) + bytes;
    this.chunkSum[slot >> CHUNK] = (this.chunkSum[slot >> CHUNK] as number) + bytes;
  }

  remove(slot: number): void {
    const bytes = this.size[slot] as number;
    this.id[slot] = -1;
    this.size[slot] = 0;
    this.groupSum[slot >> GROUP] = (this.groupSum[slot >> GROUP] as number) - bytes;
    this.chunkSum[slot >> CHUNK] = (this.chunkSum[slot >> CHUNK] as number) - bytes;
    this.bytes -= bytes;
    this.live--;
    if (slot < this.dirty) this.dirty = slot;
  }

  /** Close the gaps once more than half of the slots stand empty: each block is moved a few times at most. */
  compact(slotOf: Int32Array): void {
    if (this.used <= 1024 + 2 * this.live) return;
    const { used } = this;
    this.groupSum.fill(0);
    this.chunkSum.fill(0);
    let to = 0;
    // Never writes past the slot it reads.
    for (let slot = 0; slot < used; slot++) {
      const block = this.id[slot] as number;
      if (block >= 0) this.#put(to++, block, this.size[slot] as number, slotOf);
    }
    this.used = to;
    this.dirty = 0;
  }

  #grow(): void {
    const slots = Math.max(4096, this.id.length * 2);
    this.id = grown(this.id, new Int32Array(slots));
    this.size = grown(this.size, new Float64Array(slots));
    this.groupSum = grown(this.groupSum, new Float64Array(slots >> GROUP));
    this.chunkSum = grown(this.chunkSum, new Float64Array(slots >> CHUNK));
  }
}

function grown<A extends Int32Array | Float64Array>(from: A, to: A): A {
  to.set(from);
  return to;
}
