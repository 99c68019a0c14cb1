/** Facts about a block in words, worked out on a small history. */

import { describe, expect, it } from "vitest";
import { doubts, type FrameFacts, lifetime, nativeHint, shortFile, stackText } from "../src/facts.js";
import { FLAG } from "../src/wire.js";
import { parse } from "./histories.js";

const { data, id } = parse("^old:512 a:1024 . -a b:512 --a", { time_us: Float64Array.of(0, 1500, 2000, 2500, 9000) });

describe("lifetime", () => {
  it("counts events from the allocation to the asked-for free", () => {
    expect(lifetime(data, id.a as number)).toEqual({
      born: "event 0, at 0 µs",
      died: "event 2, at 2.00 ms",
      lived: "2 events, 2.00 ms",
    });
  });

  it("says at least where an end is not known", () => {
    expect(lifetime(data, id.old as number)).toEqual({
      born: "before the recording",
      died: "still held at the end",
      lived: "at least 5 events, 9.00 ms",
    });
  });

  it("tells what the source could not", () => {
    const flags = Uint8Array.of(FLAG.allocMissing, FLAG.freeImplied | FLAG.sizeGuessed, 0);
    const flagged = { ...data, flags };
    expect(lifetime(flagged, 1).died).toContain("its free was not recorded");
    expect(doubts(flagged, 0)).toHaveLength(1);
    expect(doubts(flagged, 1)[0]).toContain("could not be checked");
    expect(doubts(flagged, 2)).toEqual([]);
  });
});

const frame = (name: string, kind: number, file = "??"): FrameFacts => ({
  row: 0,
  name,
  kind,
  mayDiffer: false,
  file,
  line: 3,
  source: "",
});

describe("nativeHint", () => {
  it("names the backward node where there is one", () => {
    const names = [
      "c10::cuda::malloc()",
      "at::native::mm(at::Tensor)",
      "torch::autograd::generated::MmBackward0::apply(x)",
    ];
    expect(nativeHint(names.map((each) => frame(each, 2)))).toBe("MmBackward0");
  });

  it("else the first function that is not the allocator's", () => {
    const names = [
      "torch::unwind::unwind()",
      "c10::cuda::CUDACachingAllocator::Native::malloc(int)",
      "at::native::empty_cuda(int)",
      "at::native::_to_copy(at::Tensor const&, bool)",
      "torch::autograd::Engine::thread_main(std::shared_ptr<int> const&)",
    ];
    expect(nativeHint(names.map((each) => frame(each, 2)))).toBe("backward, at::native::_to_copy");
  });
});

describe("text", () => {
  it("copies a stack as Python writes one", () => {
    const frames = [
      { ...frame("step", 0, "/a/train.py"), source: "    loss.backward()" },
      frame("main", 0, "/a/run.py"),
    ];
    expect(stackText(frames)).toBe(
      '  File "/a/train.py", line 3, in step\n    loss.backward()\n  File "/a/run.py", line 3, in main',
    );
  });

  it("shortens paths of either kind", () => {
    expect(shortFile("/home/me/project/train.py")).toBe("project/train.py");
    expect(shortFile("C:\\work\\a\\b.py")).toBe("a/b.py");
    expect(shortFile("train.py")).toBe("train.py");
  });
});
