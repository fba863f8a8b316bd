"""Times FLA's short convolution, gated delta rule and PyTorch's attention at one model's head sizes.

  python3 bench/rivals/fla_ops.py --lengths LENGTHS --json OUT.json

One packed row of documents (one length per line of LENGTHS), random inputs, bf16, forward and whole autograd
backward, medians by CUDA events. Needs torch, fla-core and Triton; the delta rule's l2 norm of q and k and the
cumulative sum of g are inside FLA's call, as a user of transformers gets it.
"""

import argparse

import common


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", help="file with one document length per line; default one of 8192")
    parser.add_argument("--key-heads", type=int, default=16)
    parser.add_argument("--value-heads", type=int, default=48)
    parser.add_argument("--query-heads", type=int, default=24)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--only", default="", help="convolution, delta or attention; default all")
    parser.add_argument("--json")
    args = parser.parse_args()

    marks = common.lift_fla_refusal()
    import torch
    import torch.nn.functional as F

    torch.manual_seed(1)
    lengths = common.read_lengths(args.lengths, 8192)
    tokens = sum(lengths)
    starts = [0]
    for n in lengths:
        starts.append(starts[-1] + n)
    cu = torch.tensor(starts, dtype=torch.int32, device="cuda")
    result = {**common.machine(), **marks, "tokens": tokens, "documents": len(lengths), "ms": {}}

    def random(*shape, scale=1.0):
        return (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale).requires_grad_()

    def both(name, forward, inputs):
        if args.only not in name:
            return
        result["ms"][name + " forward"] = common.time_ms(lambda: forward())
        y = forward()
        y = y[0] if isinstance(y, tuple) else y
        dy = torch.randn_like(y)
        result["ms"][name + " backward"] = common.time_ms(
            lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)
        )

    hk, hv = args.key_heads, args.value_heads
    from fla.modules.conv.causal_conv1d import causal_conv1d
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    channels = (2 * hk + hv) * 128
    x, w = random(1, tokens, channels), random(channels, 4, scale=0.5)
    both("convolution", lambda: causal_conv1d(x, w, activation="silu", cu_seqlens=cu), [x, w])

    q, k, v = random(1, tokens, hv, 128), random(1, tokens, hv, 128), random(1, tokens, hv, 128)
    if hv != hk:  # grouped value attention: q and k with their own head count
        q, k = random(1, tokens, hk, 128), random(1, tokens, hk, 128)
    g = (-torch.rand(1, tokens, hv, device="cuda") * 0.5).requires_grad_()
    beta = torch.rand(1, tokens, hv, device="cuda", dtype=torch.bfloat16).requires_grad_()

    def delta():
        return chunk_gated_delta_rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True, cu_seqlens=cu)

    both("gated delta rule", delta, [q, k, v, g, beta])

    heads = args.query_heads
    aq, ak, av = random(1, heads, tokens, 256), random(1, args.kv_heads, tokens, 256), random(1, args.kv_heads, tokens, 256)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        both("attention, one document, cuDNN",
             lambda: F.scaled_dot_product_attention(aq, ak, av, is_causal=True, enable_gqa=True), [aq, ak, av])
    common.finish(result, args.json)


if __name__ == "__main__":
    main()
