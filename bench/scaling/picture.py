"""The picture and the table of bench/scaling's results. The SVG takes the reader's theme: its own CSS has both."""

import html

STYLE = """
 .ground { fill: #ffffff } .ink { fill: #111111 } .quiet { fill: #555555 } .line { stroke: #999999 }
 .measured { fill: #3b6fb6 } .prediction { fill: none; stroke: #3b6fb6; stroke-dasharray: 4 3 }
 .products { stroke: #c2571a; stroke-width: 2 } .post { stroke: #7a7a7a; stroke-dasharray: 2 3 }
 @media (prefers-color-scheme: dark) {
  .ground { fill: #16191d } .ink { fill: #eeeeee } .quiet { fill: #a8adb3 } .line { stroke: #666c73 }
  .measured { fill: #7aa5e0 } .prediction { stroke: #7aa5e0 } .products { stroke: #f0955a } .post { stroke: #9aa0a6 } }
"""
LEFT, WIDE, BAR, STEP = 210, 420, 22, 32


def draw(result):
    """An SVG: a bar of tokens/s/GPU for each run; what plan predicts is dashed."""
    bars = []
    for record in result["runs"]:
        value, note = bar_of(record)
        if value:
            bars.append((record, value, note))
    post = result.get("post", {}).get("tokens_per_s_per_gpu")
    top = max([value for _, value, _ in bars] + [post or 0, 1])
    height = 92 + STEP * max(len(bars), 1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" '
           f'font-size="13"><style>{STYLE}</style>', '<rect class="ground" width="100%" height="100%"/>',
           f'<text class="ink" x="16" y="24" font-size="16">{title(result)}</text>',
           '<text class="quiet" x="16" y="43">slots a second and GPU; solid: measured, dashed: predicted by '
           'deltatune plan (a roofline: nothing is lost)</text>']
    y = 58
    for record, value, note in bars:
        width = WIDE * value / top
        kind = "measured" if record["state"] != "prediction" else "prediction"
        ranks = "GPU" if result.get("device") != "cpu" else "rank"
        out.append(f'<text class="ink" x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{record["policy"]}, '
                   f'{record["gpus"]} {ranks}{"s" if record["gpus"] > 1 else ""}</text>')
        out.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3"/>')
        out.append(f'<text class="ink" x="{LEFT + width + 8:.1f}" y="{y + 16}">{note}</text>')
        y += STEP
    if post:
        x = LEFT + WIDE * post / top
        out.append(f'<line class="post" x1="{x:.1f}" x2="{x:.1f}" y1="52" y2="{y}" stroke-width="2"/>')
        out.append(f'<text class="quiet" x="{x:.1f}" y="{y + 16}" text-anchor="middle">the post: {post:,}</text>')
    return "\n".join(out) + "\n</svg>\n"


def title(result):
    gpus = sorted(set(result.get("gpus") or []))
    return (f'{html.escape(str(result.get("model", "")))}, {result.get("layers", "")} layers, {result.get("tokens_per_gpu", 0):,} slots '
            f'a GPU, on {", ".join(gpus) or result.get("device", "")}')


def bar_of(record):
    """(tokens/s/GPU, what stands beside the bar)."""
    if record["state"] == "prediction":
        value = record["plan"].get("tokens_per_s_per_gpu")
        return (value, f"{value:,.0f}, predicted") if value else (None, "")
    if "tokens_per_s_per_gpu" not in record:
        return None, ""
    value = record["tokens_per_s_per_gpu"]["slots"]
    note = f"{value:,.0f}"
    if record.get("step_to_products"):
        note += f', {record["step_to_products"]:.2f} of its products'
    if record.get("exposed_share") is not None and record["gpus"] > 1:
        note += f', {100 * record["exposed_share"]:.1f} % exposed'
    return value, note + (" (interrupted)" if record["state"] == "interrupted" else "")


def cell(value, form="{:,.0f}"):
    return "" if value is None else form.format(value)


def table(result):
    """Markdown: a line for each run, what was measured beside what plan says of it."""
    lines = ["| GPUs | recompute | | step, ms | slots/s/GPU | real tokens/s/GPU | exposed | GiB, allocated / plan "
             "| kernels a step | products alone, ms | step / products | forward and backward / products |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in result["runs"]:
        plan, speed, traced = r.get("plan", {}), r.get("tokens_per_s_per_gpu") or {}, r.get("traced_step", {})
        predicted = r["state"] == "prediction"
        exposed = plan.get("exposed_share") if predicted else r.get("exposed_share")
        memory = [cell(size / 2**30 if size else None, "{:.2f}") or "-"
                  for size in (r.get("memory_bytes"), plan.get("memory_bytes"))]
        slots = plan.get("tokens_per_s_per_gpu") if predicted else speed.get("slots")
        cells = [r["gpus"], r["policy"], "predicted" if predicted else r["state"], cell(r.get("step_ms"), "{:,.1f}"),
                 cell(slots), cell(speed.get("real")), cell(None if exposed is None else 100 * exposed, "{:.2f} %"),
                 " / ".join(memory), cell(traced.get("kernels")), cell(r.get("products_alone_ms"), "{:,.1f}"),
                 cell(r.get("step_to_products"), "{:.3f}"), cell(r.get("forward_backward_to_products"), "{:.3f}")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
