"use strict";
// Fills the page from the data element: one run, or two side by side.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = data.runs;
  const two = runs.length > 1;
  const element = Charts.element;
  const number = Charts.number;
  const place = function (id) { return document.getElementById(id); };
  const letter = function (i) { return two ? "AB"[i] + ": " : ""; };
  const none = {x: [], y: []};
  const curve = function (run, name) { return run.curves[name] || none; };

  function heading(parent, text) {
    const node = element("h2", text);
    parent.append(node);
    return node;
  }

  // cells: text, or a node; a cell that is a number is set right.
  function table(parent, head, body, className) {
    const scroll = element("div", undefined, "scroll");
    const node = element("table", undefined, className);
    if (head.length > 0) {
      const row = node.createTHead().insertRow();
      head.forEach(function (text, k) {
        const numeric = body.length > 0 && (typeof body[0][k] === "number" || /^[-+]?[\d.,]+ [%x]$/.test(body[0][k]));
        row.append(element("th", text, numeric ? "n" : ""));
      });
    }
    const tbody = node.createTBody();
    body.forEach(function (cells) {
      const row = tbody.insertRow();
      cells.forEach(function (cell, k) {
        const numeric = head.length > 0 && (typeof cell === "number" || /^[-+]?[\d.,]+ [%x]$/.test(cell));
        const td = element(head.length === 0 && k === 0 ? "th" : "td", undefined, numeric ? "n" : "");
        if (cell instanceof Node) td.append(cell); else td.textContent = typeof cell === "number" ? number(cell) : cell === null ? "-" : cell;
        row.append(td);
      });
    });
    scroll.append(node);
    parent.append(scroll);
    return node;
  }

  function folded(parent, title, open) {
    const details = element("details");
    details.open = Boolean(open);
    details.append(element("summary", title));
    parent.append(details);
    return details;
  }

  // ---- the top ----

  function top() {
    runs.forEach(function (run, i) {
      place("states").append(element("span", letter(i) + run.state, "state " + run.state), " ");
    });
    const time = function (text) { return text ? text.substring(0, 16).replace("T", " ") : ""; };
    place("summary").textContent = runs.map(function (run, i) {
      const when = run.steps_logged === 0 ? "no step has been logged yet" : time(run.first_time) + " to " + time(run.last_time) + " UTC, " + run.steps_logged.toLocaleString("en") + " logged steps";
      return letter(i) + (two ? run.name + ", " : "") + when + (run.message ? ". " + run.message : "");
    }).join("  ·  ");
    place("written").textContent = (runs[0].version ? " " + runs[0].version : "") + " at " + data.written;
    const parent = place("tiles");
    if (!two) {
      const grid = element("div", undefined, "tiles");
      runs[0].tiles.forEach(function (tile) {
        const box = element("div", undefined, "tile");
        box.append(element("div", tile.label, "label"), element("div", tile.value, "value"), element("div", tile.note, "note"));
        grid.append(box);
      });
      parent.append(grid);
      return;
    }
    const labels = [];
    runs.forEach(function (run) { run.tiles.forEach(function (tile) { if (!labels.includes(tile.label)) labels.push(tile.label); }); });
    const of = function (run, label) {
      const tile = run.tiles.find(function (t) { return t.label === label; });
      return tile ? tile.value + (tile.note ? " (" + tile.note + ")" : "") : "-";
    };
    const panel = element("div", undefined, "panel");
    table(panel, ["", "A: " + runs[0].name, "B: " + runs[1].name], labels.map(function (label) { return [label, of(runs[0], label), of(runs[1], label)]; }));
    parent.append(panel);
  }

  function findings() {
    const parent = place("findings");
    runs.forEach(function (run, i) {
      if (run.findings.length === 0) return;
      heading(parent, letter(i) + "Findings");
      run.findings.forEach(function (finding) {
        const box = element("div", undefined, "finding " + finding.severity);
        box.append(element("h3", finding.title));
        const gain = element("div", undefined, "gain");
        if (finding.gain !== null && finding.gain_low !== null && finding.gain_high !== null) {
          const percent = function (value) { return number(Number(value.toPrecision(3))); };
          gain.append("+" + percent(finding.gain) + " % tokens/s");
          gain.append(element("small", percent(finding.gain_low) + " to " + percent(finding.gain_high) + " %, confidence " + finding.confidence));
        } else {
          gain.append(element("small", "confidence " + finding.confidence));
        }
        box.append(gain, element("p", finding.evidence));
        if (finding.key) {
          const set = element("p", "set ");
          set.append(element("code", finding.key + ": " + finding.value));
          if (finding.note) set.append(": " + finding.note);
          box.append(set);
        } else if (finding.note) {
          box.append(element("p", finding.note));
        }
        parent.append(box);
      });
    });
  }

  // ---- curves ----

  function charts() {
    const parent = place("charts");
    heading(parent, "Training");
    const series = function (name, key, colours, more) {
      return runs.map(function (run, i) {
        const c = curve(run, key);
        return Object.assign({name: letter(i) + name, x: c.x, y: c.y, colour: colours[i]}, more);
      });
    };
    const pair = function () {
      const node = element("div", undefined, "pair");
      parent.append(node);
      return node;
    };
    Charts.add(parent, {title: "Loss", smooth: true, log: true,
      series: series("train", "loss", ["--c0", "--c1"]).concat(series("eval", "eval_loss", two ? ["--c5", "--c4"] : ["--c1"], {dots: true}))});
    const small = pair();
    Charts.add(small, {title: "Learning rate", small: true, zero: true, series: series("learning rate", "learning_rate", ["--c0", "--c1"])});
    Charts.add(small, {title: "Gradient norm before clipping", small: true, log: true, smooth: true, series: series("gradient norm", "grad_norm", ["--c0", "--c1"])});
    Charts.add(parent, {title: "Throughput, tokens per second", zero: true,
      series: series("real", "tokens_per_s_real", ["--c0", "--c1"])
        .concat(series("supervised", "tokens_per_s_supervised", ["--c2", "--c4"], {dash: two}))
        .concat(two ? [] : series("slots", "tokens_per_s_slots", ["--c7"], {dash: true}))});
    Charts.add(parent, {title: "What the devices achieve", percent: true, optional: true,
      note: "Utilisation counts any time in which some kernel runs. MFU is the share of the dense peak that the model's arithmetic uses.",
      series: series("MFU", "mfu", ["--c0", "--c1"])
        .concat(series("utilisation", "gpu_utilisation", ["--c1", "--c4"], {dash: true}))
        .concat(two ? [] : series("roofline", "roofline_share", ["--c2"]))
        .concat(two ? [] : series("fill", "fill", ["--c7"], {dash: true}))});
    const split = two ? pair() : parent;
    runs.forEach(function (run, i) {
      const names = ["compute", "waiting for other ranks", "waiting for data", "at the pace of the host"];
      const colours = ["--c0", "--c1", "--c2", "--c4"];
      const used = run.split.y.map(function (y, k) { return {name: names[k], x: run.split.x, y: y, colour: colours[k]}; })
        .filter(function (one, k) { return k === 0 || one.y.some(function (v, n) { return v > 0.001 * run.split.y[0][n]; }); });
      Charts.add(split, {title: letter(i) + "Time of a step, seconds", stacked: true, small: two, series: used.reverse(),
        note: run.split.steps_per_row > 1 ? "Each point is the mean of " + run.split.steps_per_row + " logged steps." : ""});
    });
    parent.append(element("p", "Drag across a chart to zoom all of them, double-click to see everything again. Hover or tap for values, click a name to hide it.", "hint"));
  }

  // ---- ops ----

  const opColumns = [
    {name: "op", get: function (o) { return o.op; }}, {name: "shape", get: function (o) { return o.shape; }},
    {name: "phase", get: function (o) { return o.phase; }}, {name: "kernel", get: function (o) { return o.kernel; }},
    {name: "calls", get: function (o) { return o.calls; }}, {name: "host us", get: function (o) { return o.host; }},
    {name: "device us", get: function (o) { return o.device; }}, {name: "total ms", get: function (o) { return o.ms; }},
    {name: "share", get: function (o) { return o.share; }, percent: true}, {name: "GB/s", get: function (o) { return o.gb; }},
    {name: "TFLOP/s", get: function (o) { return o.tflop; }}, {name: "roofline", get: function (o) { return o.roofline; }, percent: true}
  ];

  function opsOf(profile) {
    return profile.ops.map(function (r) {
      return {op: r[0], shape: r[1], phase: r[2], kernel: r[3], slow: r[4], calls: r[5], host: r[6], device: r[7], ms: r[8], gb: r[9], tflop: r[10], roofline: r[11]};
    });
  }

  // Rows with the same key as one: calls and times are sums, rates are weighted by time.
  function grouped(ops, keys) {
    const out = new Map();
    ops.forEach(function (o) {
      const id = JSON.stringify(keys.map(function (k) { return o[k]; }));
      if (!out.has(id)) out.set(id, {op: "", shape: "", phase: "", kernel: "", slow: false, calls: 0, hostSum: 0, ms: 0, gbSum: 0, gbTime: 0, tfSum: 0, tfTime: 0, roofSum: 0, roofTime: 0});
      const g = out.get(id);
      keys.forEach(function (k) { g[k] = o[k]; });
      g.slow = g.slow || o.slow;
      g.calls += o.calls || 0;
      g.hostSum += (o.host || 0) * (o.calls || 0);
      g.ms += o.ms || 0;
      [["gb", "gbSum", "gbTime"], ["tflop", "tfSum", "tfTime"], ["roofline", "roofSum", "roofTime"]].forEach(function (n) {
        if (o[n[0]] !== null && o.ms) { g[n[1]] += o[n[0]] * o.ms; g[n[2]] += o.ms; }
      });
    });
    return Array.from(out.values()).map(function (g) {
      const mean = function (sum, time) { return time > 0 ? sum / time : null; };
      return Object.assign(g, {host: g.calls ? g.hostSum / g.calls : null, device: g.calls ? 1000 * g.ms / g.calls : null,
        gb: mean(g.gbSum, g.gbTime), tflop: mean(g.tfSum, g.tfTime), roofline: mean(g.roofSum, g.roofTime)});
    });
  }

  const groupings = {"op": ["op"], "op and shape": ["op", "shape", "phase", "kernel"], "kernel": ["kernel"], "phase": ["phase"]};

  function opTable(parent, profile) {
    const tools = element("div", undefined, "tools");
    const select = element("select");
    select.setAttribute("aria-label", "one row for each");
    Object.keys(groupings).forEach(function (name) { const o = element("option", name); o.value = name; select.append(o); });
    tools.append("one row for each", select);
    const box = element("div", undefined, "tall");
    let order = {column: 7, down: true};
    const show = function () {
      box.textContent = "";
      const keys = groupings[select.value];
      const rows = grouped(opsOf(profile), keys);
      const total = rows.reduce(function (sum, o) { return sum + o.ms; }, 0) + (profile.more_ms || 0) + (profile.unnamed_ms || 0);
      rows.forEach(function (o) { o.share = total > 0 ? o.ms / total : null; });
      const shown = opColumns.filter(function (c, k) { return k > 3 || keys.includes(c.name); });
      const by = opColumns[order.column];
      rows.sort(function (a, b) {
        const x = by.get(a), y = by.get(b);
        const less = typeof x === "string" ? x.localeCompare(y) : (x === null ? -Infinity : x) - (y === null ? -Infinity : y);
        return order.down ? -less : less;
      });
      const scroll = element("div", undefined, "scroll");
      const node = element("table");
      const head = node.createTHead().insertRow();
      shown.forEach(function (column) {
        const k = opColumns.indexOf(column);
        const th = element("th", column.name, k > 3 ? "n" : "");
        th.tabIndex = 0;
        if (order.column === k) th.setAttribute("aria-sort", order.down ? "descending" : "ascending");
        const sort = function () { order = {column: k, down: order.column === k ? !order.down : k > 3}; show(); };
        th.addEventListener("click", sort);
        th.addEventListener("keydown", function (e) { if (e.key === "Enter") sort(); });
        head.append(th);
      });
      const body = node.createTBody();
      rows.forEach(function (o) {
        const row = body.insertRow();
        shown.forEach(function (column) {
          const k = opColumns.indexOf(column);
          const value = column.get(o);
          const td = element("td", k > 3 ? (column.percent ? (value === null ? "-" : (value * 100).toFixed(1) + " %") : number(value)) : value, k > 3 ? "n" : "name");
          if (column.name === "kernel" && o.slow) td.append(element("span", " slow", "slow"));
          if (column.name === "op" && o.slow && !keys.includes("kernel")) td.append(element("span", " slow", "slow"));
          if (column.name === "share" && value !== null) {
            const bar = element("div", undefined, "bar");
            bar.style.width = Math.max(0, Math.min(100, value * 100)) + "%";
            td.append(bar);
          }
          row.append(td);
        });
      });
      scroll.append(node);
      box.append(scroll);
    };
    select.addEventListener("change", show);
    parent.append(tools, box);
    show();
    if (profile.more_ops > 0) parent.append(element("p", profile.more_ops + " more rows, " + number(profile.more_ms) + " ms together, are in profile.json", "hint"));
  }

  function profileLine(profile) {
    const parts = [];
    const add = function (value, text) { if (value !== null && value !== undefined) parts.push(text.replace("#", number(value))); };
    if (profile.device) parts.push(profile.device);
    add(profile.step_ms, "# ms a step");
    add(profile.untraced_ms, "# ms without tracing");
    add(profile.busy_ms, "device busy # ms");
    add(profile.idle_ms, "idle # ms");
    add(profile.host_bound_ms, "idle while the host works # ms");
    add(profile.launches, "# launches" + (profile.graph ? " (CUDA graphs)" : ""));
    add(profile.kernels, "# kernels");
    add(profile.exposed_ms, "waiting for other ranks # ms");
    add(profile.unnamed_ms, "of no named op # ms");
    return parts.join(" · ");
  }

  function change(parent, before, after, names) {
    const sum = function (profile) { return new Map(grouped(opsOf(profile), ["op"]).map(function (o) { return [o.op, o]; })); };
    const a = sum(before), b = sum(after);
    const rows = Array.from(new Set(Array.from(a.keys()).concat(Array.from(b.keys())))).map(function (op) {
      const x = a.get(op), y = b.get(op);
      return {op: op, before: x ? x.ms : 0, after: y ? y.ms : 0, callsBefore: x ? x.calls : 0, callsAfter: y ? y.calls : 0};
    }).sort(function (p, q) { return Math.abs(q.after - q.before) - Math.abs(p.after - p.before); });
    const body = rows.map(function (r) {
      const d = r.after - r.before;
      const difference = element("span", (d > 0 ? "+" : "") + number(Number(d.toFixed(4))), d > 0 ? "worse" : d < 0 ? "better" : "");
      return [r.op, r.callsBefore, r.callsAfter, r.before, r.after, difference, r.before > 0 && r.after > 0 ? (r.before / r.after).toFixed(2) + " x" : "-"];
    });
    const panel = element("div", undefined, "panel");
    panel.append(element("h3", "Ops, " + names[0] + " and " + names[1]));
    const box = element("div", undefined, "tall");
    table(box, ["op", "calls " + names[0], "calls " + names[1], "ms " + names[0], "ms " + names[1], "difference ms", "faster"], body);
    panel.append(box);
    parent.append(panel);
  }

  function ops() {
    const parent = place("ops");
    if (!runs.some(function (run) { return run.profile; })) return;
    heading(parent, "Where the time goes");
    if (two && runs[0].profile && runs[1].profile) change(parent, runs[0].profile, runs[1].profile, ["A", "B"]);
    runs.forEach(function (run, i) {
      if (!run.profile) return;
      if (!two && run.profile_before) change(parent, run.profile_before, run.profile, ["before", "after"]);
      const panel = element("div", undefined, "panel");
      panel.append(element("h3", letter(i) + "Ops of a step"), element("p", profileLine(run.profile), "soft"));
      opTable(panel, run.profile);
      if (run.profile.gaps.length > 0) {
        const gaps = folded(panel, "Largest pauses of the device");
        table(gaps, ["us", "after", "before", "the host meanwhile"], run.profile.gaps);
      }
      parent.append(panel);
    });
  }

  // ---- memory, data, devices ----

  function memory() {
    const parent = place("memory");
    if (!runs.some(function (run) { return run.memory; })) return;
    heading(parent, "Memory plan");
    const gib = function (bytes) { return bytes / 1073741824; };
    runs.forEach(function (run, i) {
      const plan = run.memory;
      if (!plan) return;
      const panel = element("div", undefined, "panel");
      const whole = Math.max(plan.available || 0, plan.total);
      panel.append(element("h3", letter(i) + number(gib(plan.total)) + " GiB of one device" + (plan.available ? ", " + number(gib(plan.available)) + " GiB available" : "") + (plan.recompute ? ", recompute: " + plan.recompute : "")));
      const strip = element("div", undefined, "strip");
      plan.regions.filter(function (r) { return !r[3]; }).forEach(function (r, k) {
        const part = element("span");
        part.style.flexBasis = 100 * r[2] / whole + "%";
        part.style.background = "var(--c" + k % 8 + ")";
        part.title = r[0] + ": " + number(gib(r[2])) + " GiB";
        strip.append(part);
      });
      panel.append(strip);
      const rows = plan.regions.map(function (r, k) {
        const name = element("span", r[0] + (r[3] ? " (host memory, not in the total)" : ""));
        if (!r[3]) {
          const mark = element("i");
          mark.style.cssText = "display:inline-block;width:.7em;height:.7em;border-radius:.15em;margin-right:.5em;background:var(--c" + plan.regions.filter(function (q, n) { return !q[3] && n < k; }).length % 8 + ")";
          name.prepend(mark);
        }
        return [name, r[1], gib(r[2]), (100 * r[2] / plan.total).toFixed(1) + " %"];
      });
      table(panel, ["region", "lives for", "GiB", "share"], rows.slice(0, 8));
      if (rows.length > 8) table(folded(panel, rows.length - 8 + " more regions"), ["region", "lives for", "GiB", "share"], rows.slice(8));
      parent.append(panel);
    });
  }

  // Bars of [upper edge, count].
  function histogram(parent, bins) {
    const most = Math.max.apply(null, bins.map(function (b) { return b[1]; }));
    if (!(most > 0)) return;
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("class", "bars");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", "how many conversations have how many tokens");
    const width = 100 / bins.length;
    bins.forEach(function (bin, k) {
      const bar = document.createElementNS(space, "rect");
      const height = 90 * bin[1] / most;
      bar.setAttribute("x", k * width + 0.1 * width + "%");
      bar.setAttribute("width", 0.8 * width + "%");
      bar.setAttribute("y", 95 - height);
      bar.setAttribute("height", height);
      const title = document.createElementNS(space, "title");
      title.textContent = "up to " + number(bin[0]) + " tokens: " + number(bin[1]) + " rows";
      bar.append(title);
      const text = document.createElementNS(space, "text");
      text.setAttribute("x", (k + 0.5) * width + "%");
      text.setAttribute("y", 112);
      text.setAttribute("text-anchor", "middle");
      if (bins.length <= 14 || k % 2 === 0) text.textContent = bin[0] >= 1024 && bin[0] % 1024 === 0 ? bin[0] / 1024 + "k" : bin[0];
      svg.append(bar, text);
    });
    parent.append(svg, element("p", "rows by length in tokens, before anything is cut; a bar reaches to the number below it", "hint"));
  }

  function dataset() {
    const parent = place("data-section");
    if (!runs.some(function (run) { return run.data.length > 0; })) return;
    heading(parent, "Data");
    runs.forEach(function (run, i) {
      if (run.data.length === 0) return;
      const panel = element("div", undefined, "panel");
      if (two) panel.append(element("h3", letter(i)));
      const bins = run.histogram;
      if (Array.isArray(bins) && bins.every(function (b) { return Array.isArray(b) && b.length === 2 && b.every(Number.isFinite); })) histogram(panel, bins);
      table(panel, [], run.data, "facts");
      parent.append(panel);
    });
  }

  function telemetry() {
    const parent = place("telemetry");
    const any = runs.filter(function (run) { return run.telemetry.devices.length > 0; });
    if (any.length === 0) return;
    heading(parent, "Devices");
    const shown = [["utilisation", "Utilisation, as the driver says", {percent: true}], ["sm_clock_mhz", "SM clock, MHz", {}], ["power_w", "Power, W", {zero: true}],
      ["temperature_c", "Temperature, °C", {}], ["memory_used_gib", "Memory in use, GiB", {zero: true}], ["throttled_share", "Share of time with a throttled clock", {percent: true}]];
    const grid = element("div", undefined, "pair");
    parent.append(grid);
    shown.forEach(function (one) {
      const series = [];
      runs.forEach(function (run, i) {
        run.telemetry.devices.forEach(function (device) {
          const c = device.curves[one[0]];
          if (c) series.push({name: letter(i) + "GPU " + device.index, x: c.x, y: c.y, colour: "--c" + series.length % 8, dash: series.length >= 8});
        });
      });
      Charts.add(grid, Object.assign({title: one[1], small: true, optional: true, series: series}, one[2]));
    });
    const rows = [];
    runs.forEach(function (run, i) {
      run.telemetry.devices.forEach(function (d) {
        const m = d.mean, value = function (x) { return x === undefined ? null : x; };
        rows.push([letter(i) + "GPU " + d.index + (d.name ? " " + d.name : ""), value(m.utilisation) === null ? "-" : (100 * m.utilisation).toFixed(1) + " %",
          number(value(m.sm_clock_mhz)) + (d.last.sm_clock_max_mhz ? " of " + number(d.last.sm_clock_max_mhz) : ""), number(value(m.power_w)) + (d.last.power_limit_w ? " of " + number(d.last.power_limit_w) : ""),
          number(value(m.temperature_c)), d.throttle || "-", number(d.last.ecc_uncorrected), d.last.xid || "-", number(d.last.nvlink_errors)]);
      });
      if (run.telemetry.more > 0) rows.push([letter(i) + run.telemetry.more + " more devices", "", "", "", "", "", "", "", ""]);
    });
    const panel = element("div", undefined, "panel");
    table(panel, ["mean of the run", "utilisation", "SM clock MHz", "power W", "°C", "throttled by", "ECC errors", "XID", "NVLink errors"], rows);
    parent.append(panel);
  }

  function warnings() {
    const parent = place("warnings");
    runs.forEach(function (run, i) {
      const lines = run.warnings.concat(run.notes);
      if (lines.length === 0) return;
      heading(parent, letter(i) + "Warnings");
      const panel = element("div", undefined, "panel tall");
      const list = element("ul");
      lines.forEach(function (text) { list.append(element("li", text)); });
      if (run.more_warnings > 0) list.append(element("li", run.more_warnings.toLocaleString("en") + " more are in metrics.jsonl"));
      panel.append(list);
      parent.append(panel);
    });
  }

  // ---- what was run ----

  function differences(title, parent, pairs) {
    const a = new Map(pairs[0]), b = new Map(pairs[1]);
    const rows = Array.from(new Set(Array.from(a.keys()).concat(Array.from(b.keys()))))
      .filter(function (key) { return a.get(key) !== b.get(key); })
      .map(function (key) { return [key, a.has(key) ? a.get(key) : "-", b.has(key) ? b.get(key) : "-"]; });
    const panel = element("div", undefined, "panel");
    panel.append(element("h3", title));
    if (rows.length === 0) panel.append(element("p", "none", "soft")); else table(panel, ["", "A", "B"], rows, "facts");
    parent.append(panel);
  }

  function settings() {
    const parent = place("settings");
    heading(parent, "The run");
    if (two) {
      differences("Settings that differ", parent, runs.map(function (run) { return run.settings.map(function (s) { return [s[0], s[1]]; }); }));
      differences("Facts that differ", parent, runs.map(function (run) { return run.facts; }));
      return;
    }
    const run = runs[0];
    const own = run.settings.filter(function (s) { return s[2] !== "default"; });
    const rest = run.settings.filter(function (s) { return s[2] === "default"; });
    const panel = element("div", undefined, "panel");
    panel.append(element("h3", "Settings"));
    if (own.length > 0) table(panel, ["key", "value", "from"], own); else panel.append(element("p", "there is no config.resolved.yaml beside this page", "soft"));
    if (rest.length > 0) table(folded(panel, rest.length + " keys at their defaults"), ["key", "value"], rest.map(function (s) { return [s[0], s[1]]; }));
    parent.append(panel);
    if (run.facts.length > 0) {
      const facts = element("div", undefined, "panel");
      table(folded(facts, "Program, machine, kernels", false), [], run.facts, "facts");
      parent.append(facts);
    }
  }

  function steps() {
    if (two || runs[0].steps.rows.length === 0) return;
    const panel = element("div", undefined, "panel");
    const details = folded(panel, "The last " + runs[0].steps.rows.length + " logged steps");
    const box = element("div", undefined, "tall");
    table(box, runs[0].steps.columns, runs[0].steps.rows);
    details.append(box);
    place("steps").append(panel);
  }

  // ---- light, dark, paper ----

  function themes() {
    const root = document.documentElement;
    const button = place("theme");
    const names = ["auto", "light", "dark"];
    let chosen = "auto";
    try { chosen = localStorage.getItem("deltatune-theme") || "auto"; } catch (e) { chosen = "auto"; }
    if (!names.includes(chosen)) chosen = "auto";
    const apply = function (name) {
      if (name === "auto") root.removeAttribute("data-theme"); else root.setAttribute("data-theme", name);
    };
    const show = function () { button.textContent = "theme: " + chosen; };
    apply(chosen);
    show();
    button.addEventListener("click", function () {
      chosen = names[(names.indexOf(chosen) + 1) % names.length];
      try { localStorage.setItem("deltatune-theme", chosen); } catch (e) { show(); }
      apply(chosen);
      show();
      Charts.redrawAll();
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", Charts.redrawAll);
    let closed = [];
    window.addEventListener("beforeprint", function () {
      closed = Array.from(document.querySelectorAll("#settings details:not([open])"));
      closed.forEach(function (d) { d.open = true; });
      root.classList.add("printing");
      apply("light");
      Charts.redrawAll();
    });
    window.addEventListener("afterprint", function () {
      closed.forEach(function (d) { d.open = false; });
      root.classList.remove("printing");
      apply(chosen);
      Charts.redrawAll();
    });
  }

  themes();
  [top, findings, charts, ops, memory, dataset, telemetry, warnings, settings, steps].forEach(function (part) { part(); });
})();
