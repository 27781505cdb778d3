"""Where the time of a decode step goes: a replay of its graph, its kernels one by one, and the least time there can be.

    python tools/decode_profile.py swila-1.3b gdn-1.3b transformer-1.3b --batch 1 --batch 64

For every preset (with random weights) and batch size it prints the time of a step by replays of the captured graph,
over the time to read all weights once (and, in the second ratio, to read and write the states of the batch as well) at
the bandwidth of a copy; then the kernels of one step that runs without a graph, by total time.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from contextlib import nullcontext
from typing import Any

import torch

from swila.generation import Sampling, prefill, release
from swila.generation.api import _decoder
from swila.models import SwiLAConfig, SwiLAForCausalLM
from swila.ops.fused.choice import use_fused

STEPS = 64


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a copy of 1 GB reads and writes (a thousandth of it on a CPU)."""
    x = torch.empty(2**28 if device.type == "cuda" else 2**18, dtype=torch.float32, device=device)
    y = torch.empty_like(x)
    y.copy_(x)
    return 2 * x.numel() * x.element_size() / seconds(lambda: y.copy_(x), 20, device)


def seconds(work: Any, times: int, device: torch.device) -> float:
    """Return the mean time of some work."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - start) / times
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def weight_bytes(model: Any) -> int:
    """Return the bytes of the weights that a step reads: all but the embedding, unless the head shares it."""
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    parameters = {name: p for name, p in model.named_parameters() if tied or "embed_tokens" not in name}
    return sum(p.numel() * p.element_size() for p in parameters.values())


def kernels(work: Any) -> list[tuple[str, int, float]]:
    """Return name, number and total microseconds of the kernels that some work runs, longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        work()
        torch.cuda.synchronize()
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = totals[event.name]
            entry[0] += 1
            entry[1] += event.time_range.elapsed_us()
    rows = [(name, int(count), total) for name, (count, total) in totals.items()]
    return sorted(rows, key=lambda row: -row[2])


def report(name: str, model: Any, batch: int, prompt: int, compiled: bool, top: int, bandwidth: float) -> None:
    """Print the times of one case."""
    device = model.device
    ids = torch.randint(model.config.vocab_size, (batch, prompt), device=device)
    prefill(model, ids)
    reading = seconds(lambda: prefill(model, ids), 1, device)
    state = prefill(model, ids)
    state_bytes = state.num_bytes()
    with torch.no_grad():
        decoder = _decoder(model, state, 2 * STEPS, Sampling(), (), compiled)
        decoder.load(state, 0)
        del state
        decoder.run(8)
        per_step = seconds(lambda: decoder.run(STEPS), 1, device) / STEPS
        decoder.at.zero_()
        if device.type == "cuda":
            graph = next(iter(decoder.graphs.values()))
            per_replay = seconds(graph.replay, STEPS, device)
        else:
            per_replay = per_step
        floor = weight_bytes(model) / bandwidth
        with_state = floor + (1 if model.model.attends else 2) * state_bytes / bandwidth
        fused = [layer.fuses_step(decoder.hidden.unsqueeze(1)) for layer in model.model.layers]
        print(f"\n{name}, batch {batch}, prompt {prompt}, {sum(fused)} of {len(fused)} blocks fused")
        print(
            f"  {1e3 * per_replay:.3f} ms a step ({1e3 * per_step:.3f} in the loop), {batch / per_replay:,.0f} tokens/s"
        )
        print(f"  weights once {1e3 * floor:.3f} ms: a step is {per_replay / floor:.2f} times that")
        print(f"  weights and states {1e3 * with_state:.3f} ms: a step is {per_replay / with_state:.2f} times that")
        print(f"  prompts {1e3 * reading:.0f} ms, {batch * prompt / reading:,.0f} tokens/s")
        if device.type == "cuda":
            decoder.at.zero_()
            bound = next(iter(decoder.graphs))
            decoder._decode(bound)
            rows = kernels(lambda: decoder._decode(bound))
            total, count = sum(row[2] for row in rows), sum(row[1] for row in rows)
            print(f"{count} kernels, {total:.0f} us together; the rest of the step is between them")
            for kernel, times, microseconds in rows[:top]:
                share = microseconds / total
                print(
                    f"  {microseconds:9.1f} us {share:5.1%} {times:5d} x {microseconds / times:7.2f} us  {kernel[:90]}"
                )
    release(model)


def main() -> None:
    """Parse the arguments and print a report for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", help="preset, such as swila-1.3b")
    parser.add_argument("--batch", type=int, action="append", help="batch size; repeat for several; default 1 and 64")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of each prompt")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--top", type=int, default=16, help="number of kernels to print")
    parser.add_argument("--compiled", action="store_true", help="compile blocks that are not fused")
    parser.add_argument("--plain", action="store_true", help="without fused kernels")
    options = parser.parse_args()
    device = torch.device(options.device)
    bandwidth = copy_bandwidth(device)
    print(f"copy: {bandwidth / 1e12:.3f} TB/s")
    for name in options.model:
        with device:
            model = SwiLAForCausalLM(SwiLAConfig.preset(name)).to(getattr(torch, options.dtype)).eval()
        for batch in options.batch or [1, 64]:
            try:
                with use_fused(False) if options.plain else nullcontext():
                    report(name, model, batch, options.prompt, options.compiled, options.top, bandwidth)
            except torch.OutOfMemoryError:
                print(f"\n{name}, batch {batch}, prompt {options.prompt}: out of memory")
                release(model)
            if device.type == "cuda":
                torch.cuda.empty_cache()
        del model


if __name__ == "__main__":
    main()
