// Draws charts from the rows of points that a page carries, and draws again what has changed.
"use strict";

(() => {
  const MOST_IN_WORDS = 6;
  const parsed = new WeakMap();
  const drawn = new Map();
  let axis = "step";
  let waiting = false;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => (value === null || value === undefined ? "-" : Number(value.toPrecision(5)).toString());
  const span = (seconds) => {
    if (seconds < 120) return `${Math.round(seconds)} s`;
    if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
  };
  const pointsOf = (row) => {
    let points = parsed.get(row);
    if (!points) parsed.set(row, (points = JSON.parse(row.dataset.points)));
    return points;
  };

  // Lines of a chart: name → points [step, seconds, value], in the order in which the page has them.
  const linesOf = (chart) => {
    const lines = new Map();
    for (const row of document.querySelectorAll(`tr[data-chart="${CSS.escape(chart)}"]`)) {
      const line = lines.get(row.dataset.line) ?? { points: [], mark: row.dataset.mark ?? "" };
      line.points.push(...pointsOf(row));
      lines.set(row.dataset.line, line);
    }
    return lines;
  };
  // By step, a run that began again further back replaces what was there.
  const columns = (points, bySteps) => {
    const xs = [], ys = [];
    let before = Infinity;
    for (let i = points.length - 1; i >= 0; i--) {
      const x = bySteps ? points[i][0] : points[i][1];
      if (bySteps && x >= before) continue;
      before = x;
      xs.push(x);
      ys.push(points[i][2]);
    }
    return [xs.reverse(), ys.reverse()];
  };

  // Between two steps there is none.
  const WHOLE = Array.from({ length: 48 }, (_, at) => [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3));

  const strokeOf = (mark, index, many) => {
    if (!many) return { stroke: color(`--l${index % 6}`), width: 1.8 };
    if (mark === "best") return { stroke: color("--l1"), width: 3 };
    return mark === "running" ? { stroke: color("--l0"), width: 1.2 } : { stroke: color("--faint"), width: 1 };
  };

  const draw = (figure) => {
    const plot = figure.querySelector(".plot");
    const lines = [...linesOf(figure.dataset.chart)];
    const said = figure.querySelector("output");
    const bySteps = figure.dataset.x === "step" || (figure.dataset.x === "both" && axis === "step");
    const many = lines.length > MOST_IN_WORDS || lines.some(([, line]) => line.mark);
    // The best is drawn last, over all others.
    if (many) lines.sort((a, b) => ["", "running", "best"].indexOf(a[1].mark) - ["", "running", "best"].indexOf(b[1].mark));
    const tables = lines.map(([, line]) => columns(line.points, bySteps));
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0] ?? [[], []];
    const shape = JSON.stringify([bySteps, lines.map(([name, line]) => [name, line.mark])]);
    const known = drawn.get(figure);
    if (known && known.shape === shape) {
      known.chart.setData(data);
      return;
    }
    known?.chart.destroy();
    const name = bySteps ? "step" : "after";
    const axes = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
    const stepped = figure.dataset.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined;
    const chart = new uPlot({
      width: Math.max(200, plot.clientWidth),
      height: many ? 300 : 180,
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, focus: { prox: many ? 24 : -1 } },
      focus: { alpha: many ? 0.35 : 1 },
      scales: { x: { time: false } },
      axes: [
        { ...axes, size: 30, incrs: bySteps ? WHOLE : undefined, values: (_, ticks) => ticks.map((tick) => (bySteps ? short(tick) : span(tick))) },
        { ...axes, size: 62, values: (_, ticks) => ticks.map(short) },
      ],
      series: [
        { label: name },
        ...lines.map(([label, line], index) => ({
          label, ...strokeOf(line.mark, index, many), paths: stepped, spanGaps: !stepped,
          points: { show: line.points.length < 3 || (many && line.points.length < 12) },
        })),
      ],
      hooks: {
        setCursor: [(self) => {
          const at = self.cursor.idx;
          if (at === null || at === undefined) { said.textContent = ""; return; }
          const x = self.data[0][at];
          const where = bySteps ? `step ${short(x)}` : `after ${span(x)}`;
          if (many) {
            const nearest = self.series.findIndex((one, index) => index > 0 && one._focus);
            said.textContent = nearest > 0 && self.data[nearest][at] !== undefined && self.data[nearest][at] !== null
              ? `${self.series[nearest].label}: ${short(self.data[nearest][at])} at ${where}` : where;
          } else {
            const values = lines.map(([label], index) => (lines.length > 1 ? `${label} ` : "") + short(self.data[index + 1][at]));
            said.textContent = `${where}: ${values.join(", ")}`;
          }
        }],
      },
    }, data, plot);
    drawn.set(figure, { chart, shape });
    figure.dataset.drawn = "1";
    sizes.observe(plot);
  };

  const sizes = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const known = drawn.get(entry.target.closest("figure"));
      const width = Math.floor(entry.contentRect.width);
      if (known && width > 0 && Math.abs(width - known.chart.width) > 1) known.chart.setSize({ width, height: known.chart.height });
    }
  });

  const drawAll = () => {
    waiting = false;
    const figures = [...document.querySelectorAll("figure[data-chart]")];
    for (const [figure, known] of drawn) {
      if (!figure.isConnected) { known.chart.destroy(); drawn.delete(figure); }
    }
    for (const field of document.querySelectorAll("[data-axis]")) {
      field.hidden = !figures.some((figure) => figure.dataset.x === "both");
    }
    for (const figure of figures) draw(figure);
  };
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(drawAll);
  };
  const anew = () => {
    for (const [, known] of drawn) known.chart.destroy();
    drawn.clear();
    later();
  };

  document.addEventListener("penstock:changed", (event) => {
    if (["charts", "points"].includes(event.target.dataset.region)) later();
  });
  document.addEventListener("change", (event) => {
    if (event.target.name !== "axis") return;
    axis = event.target.value;
    later();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
  drawAll();
})();
