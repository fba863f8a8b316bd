"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = [];
  let drawing = false;

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }
  function number(value) {
    if (value === null || value === undefined) return "-";
    if (value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 1e5)) {
      return String(Number(value.toPrecision(5)));
    }
    return Math.abs(value) >= 1e5 ? Math.round(value).toLocaleString("en") : value.toExponential(2);
  }
  function element(tag, text, className) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  // Step of x for each series, merged into dygraphs' rows; null where a series has no value.
  function rows(series) {
    const byStep = new Map();
    series.forEach(function (one, k) {
      one.points.forEach(function (point) {
        if (!byStep.has(point[0])) byStep.set(point[0], new Array(series.length).fill(null));
        byStep.get(point[0])[k] = point[1];
      });
    });
    return Array.from(byStep.keys()).sort(function (a, b) { return a - b; }).map(function (step) {
      return [step].concat(byStep.get(step));
    });
  }

  function zoomOthers(graph, initial) {
    if (initial || drawing) return;
    drawing = true;
    const range = graph.xAxisRange();
    charts.forEach(function (other) {
      if (other.graph !== graph) other.graph.updateOptions({dateWindow: range});
    });
    drawing = false;
  }

  function draw(chart) {
    const palette = [colour("--one"), colour("--two")];
    const options = {};
    chart.series.forEach(function (one) {
      options[one.name] = one.dots ? {drawPoints: true, pointSize: 4, strokeWidth: 1.5} : {strokeWidth: 1.5};
    });
    chart.graph = new Dygraph(chart.box, rows(chart.series), {
      labels: ["step"].concat(chart.series.map(function (one) { return one.name; })),
      series: options,
      colors: palette,
      connectSeparatedPoints: true,
      includeZero: chart.fromZero,
      gridLineColor: colour("--rule"),
      axisLineColor: colour("--rule"),
      highlightCircleSize: 4,
      xRangePad: 6,
      yRangePad: 10,
      axisLabelWidth: 58,
      drawPoints: chart.series.every(function (one) { return one.points.length < 3; }),
      axes: {y: {axisLabelFormatter: number}, x: {axisLabelFormatter: function (v) { return Number.isInteger(v) ? String(v) : ""; }}},
      animatedZooms: false,
      drawCallback: zoomOthers,
      highlightCallback: function (event, x, points) {
        chart.legend.textContent = "step " + x + "  " + points.map(function (p) { return p.name + " " + number(p.yval); }).join("  ");
      },
      unhighlightCallback: function () { chart.legend.textContent = chart.caption; }
    });
  }

  function addChart(parent, title, series, small, fromZero) {
    const used = series.filter(function (one) { return one.points.length > 0; });
    const figure = element("figure");
    const caption = element("figcaption", title);
    const legend = element("span", "", "legend");
    caption.appendChild(legend);
    figure.appendChild(caption);
    parent.appendChild(figure);
    if (used.length === 0) {
      figure.appendChild(element("p", "nothing logged yet", "empty"));
      return;
    }
    const box = element("div", undefined, small ? "chart small" : "chart");
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", title + " over optimizer steps");
    figure.appendChild(box);
    const last = used.map(function (one) { return one.name + " " + number(one.points[one.points.length - 1][1]); }).join(", ");
    const chart = {box: box, legend: legend, series: used, fromZero: fromZero, caption: "last: " + last};
    legend.textContent = chart.caption;
    draw(chart);
    charts.push(chart);
  }

  function redraw() {
    charts.forEach(function (chart) {
      chart.graph.destroy();
      draw(chart);
    });
  }

  function fillTable(id, head, body) {
    const table = document.getElementById(id);
    if (head.length > 0) {
      const row = table.createTHead().insertRow();
      head.forEach(function (text) { row.appendChild(element("th", text)); });
    }
    const tbody = table.createTBody();
    body.forEach(function (cells) {
      const row = tbody.insertRow();
      cells.forEach(function (text, k) {
        row.appendChild(element(head.length === 0 && k === 0 ? "th" : "td", text));
      });
    });
  }

  const s = data.series;
  document.getElementById("summary").textContent = data.summary;
  const state = document.getElementById("state");
  state.textContent = data.state;
  state.classList.add(data.state);

  const place = document.getElementById("charts");
  addChart(place, "Loss", [{name: "train", points: s.loss}, {name: "eval", points: s.eval_loss, dots: true}], false, false);
  addChart(place, "Throughput, tokens per second", [{name: "tokens/s", points: s.tokens_per_s}], false, true);
  const pair = element("div", undefined, "pair");
  place.appendChild(pair);
  addChart(pair, "Learning rate", [{name: "learning rate", points: s.learning_rate}], true, true);
  addChart(pair, "Gradient norm", [{name: "gradient norm", points: s.grad_norm}], true, true);

  fillTable("facts", [], data.facts);
  fillTable("steps", ["step", "epoch", "loss", "gradient norm", "learning rate", "tokens/s", "fill"], data.steps.map(function (row) { return row.map(number); }));
  if (data.warnings.length > 0) {
    const section = document.getElementById("warnings");
    section.appendChild(element("h2", "Warnings"));
    const list = element("ul");
    data.warnings.forEach(function (text) { list.appendChild(element("li", text)); });
    section.appendChild(list);
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.matchMedia("print").addEventListener("change", redraw);
})();
