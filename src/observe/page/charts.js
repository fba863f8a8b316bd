"use strict";
// Curves over optimizer steps, drawn by dygraphs. Charts.add(parent, spec) makes one; all of them zoom together.
// spec: {title, series: [{name, x, y, colour, dots, dash, faint}], small, zero, stacked, percent, log, smooth, unit}.
const Charts = (function () {
  const all = [];
  let zooming = false;

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function number(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "-";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e15 || size < 0.001) return value.toExponential(2);
    if (size >= 1e5) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(5)));
  }

  function element(tag, text, className) {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  // One row per step that any series has. dygraphs bridges null (not logged there) and breaks the line at NaN.
  function rows(series) {
    const at = new Map();
    series.forEach(function (one, k) {
      one.x.forEach(function (step, i) {
        let row = at.get(step);
        if (!row) {
          row = new Array(series.length + 1).fill(null);
          row[0] = step;
          at.set(step, row);
        }
        row[k + 1] = one.y[i] === null ? NaN : one.y[i];
      });
    });
    return Array.from(at.values()).sort(function (a, b) { return a[0] - b[0]; });
  }

  // Exponential mean with a span of a fiftieth of the points, unbiased at the start.
  function smoothed(one) {
    const keep = 1 - 1 / Math.max(2, one.y.length / 50);
    let mean = 0;
    let weight = 0;
    const y = one.y.map(function (value) {
      if (value === null) return null;
      mean = keep * mean + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
      return mean / weight;
    });
    return {name: one.name + ", smoothed", x: one.x, y: y, colour: one.colour};
  }

  function drawn(chart) {
    const out = [];
    chart.spec.series.forEach(function (one) {
      const smooth = chart.smooth && one.y.length >= 60 && !one.dots;
      out.push(Object.assign({}, one, {faint: smooth}));
      if (smooth) out.push(smoothed(one));
    });
    return out;
  }

  function zoomOthers(graph, initial) {
    if (initial || zooming) return;
    zooming = true;
    const whole = !graph.isZoomed("x");
    const range = graph.xAxisRange();
    all.forEach(function (other) {
      if (other.graph !== graph) other.graph.updateOptions({dateWindow: whole ? null : range});
    });
    zooming = false;
  }

  function draw(chart) {
    const spec = chart.spec;
    const series = drawn(chart);
    const options = {};
    series.forEach(function (one) {
      options[one.name] = {
        strokeWidth: one.faint ? 1 : spec.stacked ? 0.5 : 1.6,
        strokePattern: one.dash ? [5, 4] : null,
        drawPoints: Boolean(one.dots) || one.x.length < 3,
        pointSize: one.dots ? 3.5 : 2.5
      };
    });
    const faint = "55";  // hexadecimal opacity
    const scale = spec.percent ? function (v) { return Number((v * 100).toPrecision(4)) + " %"; } : number;
    chart.rows = rows(series);
    chart.shown = series;
    chart.graph = new Dygraph(chart.box, chart.rows, {
      labels: ["step"].concat(series.map(function (one) { return one.name; })),
      series: options,
      colors: series.map(function (one) { return colour(one.colour) + (one.faint ? faint : ""); }),
      connectSeparatedPoints: true,
      includeZero: Boolean(spec.zero || spec.stacked || spec.percent),
      stackedGraph: Boolean(spec.stacked),
      fillAlpha: 0.65,
      logscale: chart.log,
      gridLineColor: colour("--grid"),
      axisLineColor: colour("--rule"),
      highlightCircleSize: 3.5,
      xRangePad: 6,
      yRangePad: spec.stacked ? 2 : 10,
      axisLabelWidth: 62,
      visibility: series.map(function (one) { return !chart.hidden.has(one.name.replace(", smoothed", "")); }),
      axes: {
        y: {axisLabelFormatter: scale},
        x: {axisLabelFormatter: function (v) { return Number.isInteger(v) ? v.toLocaleString("en") : ""; }}
      },
      animatedZooms: false,
      interactionModel: interaction(),
      drawCallback: zoomOthers,
      highlightCallback: function (event, x, points, row) { values(chart, x, row); },
      unhighlightCallback: function () { values(chart, null, -1); }
    });
    values(chart, null, -1);
  }

  // Without the touch handlers of dygraphs: a finger scrolls the page, a tap shows the values.
  function interaction() {
    const model = Object.assign({}, Dygraph.defaultInteractionModel);
    ["touchstart", "touchmove", "touchend"].forEach(function (name) { delete model[name]; });
    return model;
  }

  // Numbers beside the names: at the step under the pointer, else the last of each series.
  function values(chart, step, row) {
    const scale = chart.spec.percent ? function (v) { return v === null || Number.isNaN(v) ? "-" : (v * 100).toFixed(1) + " %"; } : number;
    chart.at.textContent = step === null ? "last" : "step " + step.toLocaleString("en");
    chart.legend.childNodes.forEach(function (chip) {
      const k = chart.shown.findIndex(function (one) { return one.name === chip.dataset.name; });
      const one = chart.shown[k];
      let value = null;
      if (step === null || row < 0) {
        for (let i = one.y.length - 1; i >= 0 && value === null; --i) value = one.y[i];
      } else {
        value = chart.rows[row] ? chart.rows[row][k + 1] : null;
      }
      chip.lastChild.textContent = scale(value) + (chart.spec.unit ? " " + chart.spec.unit : "");
    });
  }

  function addLegend(chart) {
    chart.spec.series.forEach(function (one) {
      const chip = element("button");
      chip.type = "button";
      chip.dataset.name = one.name;
      chip.setAttribute("aria-pressed", "true");
      chip.title = "show or hide";
      const mark = element("i");
      mark.style.background = "var(" + one.colour + ")";
      chip.append(mark, element("span", one.name), element("b", ""));
      chip.addEventListener("click", function () {
        if (chart.hidden.has(one.name)) chart.hidden.delete(one.name); else chart.hidden.add(one.name);
        chip.setAttribute("aria-pressed", String(!chart.hidden.has(one.name)));
        redraw(chart);
      });
      chart.legend.append(chip);
    });
  }

  function addSwitch(chart, place, label, member) {
    const button = element("button", label);
    button.type = "button";
    button.className = "chart-tools";
    button.setAttribute("aria-pressed", String(chart[member]));
    button.addEventListener("click", function () {
      chart[member] = !chart[member];
      button.setAttribute("aria-pressed", String(chart[member]));
      redraw(chart);
    });
    place.append(button);
  }

  function redraw(chart) {
    const range = chart.graph.isZoomed("x") ? chart.graph.xAxisRange() : null;
    chart.graph.destroy();
    zooming = true;
    draw(chart);
    if (range) chart.graph.updateOptions({dateWindow: range});
    zooming = false;
  }

  function add(parent, spec) {
    spec.series = spec.series.filter(function (one) { return one.y.some(function (v) { return v !== null; }); });
    if (spec.series.length === 0 && spec.optional) return null;
    const figure = element("figure");
    const caption = element("figcaption");
    caption.append(element("h3", spec.title));
    figure.append(caption);
    parent.append(figure);
    if (spec.series.length === 0) {
      figure.append(element("p", "nothing logged yet", "empty"));
      return null;
    }
    const chart = {spec: spec, hidden: new Set(), smooth: Boolean(spec.smooth), log: false};
    if (spec.smooth && spec.series.some(function (one) { return one.y.length >= 60; })) addSwitch(chart, caption, "smooth", "smooth");
    if (spec.log && spec.series.every(function (one) { return one.y.every(function (v) { return v === null || v > 0; }); })) addSwitch(chart, caption, "log", "log");
    chart.at = element("span", "", "at");
    chart.legend = element("div", undefined, "legend");
    caption.append(chart.at, chart.legend);
    if (spec.note) figure.append(element("p", spec.note, "hint"));
    chart.box = element("div", undefined, spec.small ? "chart small" : "chart");
    chart.box.setAttribute("role", "img");
    chart.box.setAttribute("aria-label", spec.title + " over optimizer steps");
    figure.append(chart.box);
    addLegend(chart);
    draw(chart);
    all.push(chart);
    return chart;
  }

  return {
    add: add,
    all: all,
    element: element,
    number: number,
    redrawAll: function () { all.forEach(redraw); }
  };
})();
