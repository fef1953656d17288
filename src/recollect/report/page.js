// Hover, series on and off, choice of axis, and following a run. Charts are drawn by Python; here
// their paths are moved. Margins are those of svg.py.
"use strict";
(() => {
  const LEFT = 52, RIGHT = 14, TOP = 10, BOTTOM = 30;
  const NAMES = { iteration: "iteration", steps: "environment steps of a seed", seconds: "seconds" };
  const state = { axis: "iteration", hidden: new Set() };
  const tip = document.getElementById("tip");
  let data;

  const short = (v) => {
    const a = Math.abs(v);
    if (a >= 1e9) return +(v / 1e9).toPrecision(4) + "G";
    if (a >= 1e6) return +(v / 1e6).toPrecision(4) + "M";
    if (a >= 1e4) return +(v / 1e3).toPrecision(4) + "k";
    return String(+v.toPrecision(4));
  };
  const ticks = (high, most) => {
    if (!(high > 0)) return [0];
    const rough = high / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => power * m >= rough * (1 - 1e-9));
    const out = [];
    for (let i = 0; i * step <= high * (1 + 1e-9); i++) out.push(+(i * step).toPrecision(12));
    return out;
  };
  const box = (svg) => svg.viewBox.baseVal;
  const furthest = (chart) =>
    Math.max(1e-12, ...chart.series.flatMap((s) => data.runs[s.run].x[state.axis]));
  const across = (svg, right, v) => LEFT + ((box(svg).width - LEFT - RIGHT) * v) / right;
  const up = (svg, chart, v) => {
    const f = chart.log ? Math.log : (x) => x;
    const share = (f(v) - f(chart.low)) / (f(chart.high) - f(chart.low));
    const h = box(svg).height;
    return h - BOTTOM - (h - BOTTOM - TOP) * Math.min(1, Math.max(0, share));
  };
  const shown = (chart, v) => (v !== null && (!chart.log || v > 0));

  function draw(svg) {
    const chart = data.charts[svg.id], right = furthest(chart);
    const h = box(svg).height;
    const marks = ticks(right, 5).map((v) => {
      const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      text.setAttribute("class", "x");
      text.setAttribute("x", across(svg, right, v).toFixed(1));
      text.setAttribute("y", h - BOTTOM + 18);
      text.textContent = short(v);
      return text;
    });
    svg.querySelector(".xticks").replaceChildren(...marks);
    const groups = [...svg.querySelectorAll(".series")].filter((g) => g.querySelector(".line"));
    chart.series.forEach((s, i) => {
      const x = data.runs[s.run].x[state.axis];
      const at = (v, j) => `${across(svg, right, x[j]).toFixed(1)} ${up(svg, chart, v).toFixed(1)}`;
      let line = "", pen = "M", band = "", piece = [];
      const close = () => {
        if (piece.length) {
          const top = piece.map((j) => at(s.high[j], j));
          const bottom = piece.map((j) => at(s.low[j], j)).reverse();
          band += "M" + [...top, ...bottom].join("L") + "Z";
        }
        piece = [];
      };
      s.mean.forEach((v, j) => {
        if (shown(chart, v)) { line += pen + at(v, j); pen = "L"; } else pen = "M";
        if (shown(chart, s.low[j]) && shown(chart, s.high[j])) piece.push(j); else close();
      });
      close();
      groups[i].querySelector(".line").setAttribute("d", line);
      groups[i].querySelector(".band").setAttribute("d", band);
    });
    svg.querySelector(".cursor").style.opacity = 0;
  }

  function figure(chart, v) {
    if (v === null) return "–";
    return chart.percent ? (100 * v).toFixed(0) + " %" : String(+v.toPrecision(4));
  }
  function show(lines, px, py) {
    tip.replaceChildren(...lines.map(([colour, text]) => {
      const row = document.createElement("div");
      if (colour) {
        const dot = document.createElement("i");
        dot.style.setProperty("--c", colour);
        row.append(dot);
      }
      row.append(text);
      return row;
    }));
    tip.hidden = false;
    const w = tip.offsetWidth, left = px + 14 + w > innerWidth ? px - 14 - w : px + 14;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, Math.min(innerHeight - tip.offsetHeight - 4, py)) + "px";
  }
  const hide = (svg) => {
    tip.hidden = true;
    svg.querySelectorAll(".cursor,.cell").forEach((one) => (one.style.opacity = 0));
  };

  function point(svg, x, py) { // x in units of the picture
    const chart = data.charts[svg.id], right = furthest(chart);
    const value = ((x - LEFT) / (box(svg).width - LEFT - RIGHT)) * right;
    const lines = [];
    let place = null;
    chart.series.filter((s) => !state.hidden.has(s.run)).forEach((s) => {
      const run = data.runs[s.run], xs = run.x[state.axis];
      if (!xs.length) return;
      let best = 0;
      xs.forEach((v, j) => { if (Math.abs(v - value) < Math.abs(xs[best] - value)) best = j; });
      if (place === null || Math.abs(xs[best] - value) < Math.abs(place - value)) place = xs[best];
      const spread = s.low[best] === null || s.high[best] === null ? "" :
        `  (${figure(chart, s.low[best])} to ${figure(chart, s.high[best])})`;
      lines.push([run.colour, `${run.label}  ${figure(chart, s.mean[best])}${spread}`]);
    });
    if (place === null) return hide(svg);
    const cursor = svg.querySelector(".cursor");
    cursor.setAttribute("transform", `translate(${across(svg, right, place)})`);
    cursor.style.opacity = 1;
    const frame = svg.getBoundingClientRect();
    const px = frame.left + (across(svg, right, place) / box(svg).width) * frame.width;
    show([[null, `${NAMES[state.axis]} ${short(place)}`], ...lines], px, py ?? frame.top + 20);
    svg.dataset.x = across(svg, right, place);
  }
  function cell(svg, x, y) {
    const { width, height } = box(svg), d = svg.dataset;
    const ages = +d.ages, times = +d.times;
    const wide = width - LEFT - RIGHT, tall = height - TOP - BOTTOM;
    const clamp = (v, n) => Math.max(0, Math.min(n - 1, Math.floor(v * n)));
    const time = clamp((x - LEFT) / wide, times), age = clamp(1 - (y - TOP) / tall, ages);
    const share = atob(d.values).charCodeAt(time * ages + age);
    const rect = svg.querySelector(".cell");
    const set = (k, v) => rect.setAttribute(k, v);
    set("x", LEFT + (wide * time) / times); set("width", wide / times);
    set("y", TOP + (tall * (ages - 1 - age)) / ages); set("height", tall / ages);
    rect.style.opacity = 1;
    const frame = svg.getBoundingClientRect(), scale = frame.width / width;
    const when = Math.round(((time + 0.5) * +d.iterations) / times + 0.5);
    show([[null, `age ${age}, iteration ${when}`],
      [null, share === 255 ? "no such batch yet" : `${share} % effective`]],
      frame.left + (+rect.getAttribute("x") + wide / times) * scale,
      frame.top + +rect.getAttribute("y") * scale);
    svg.dataset.x = LEFT + (wide * (time + 0.5)) / times;
    svg.dataset.y = TOP + (tall * (ages - 0.5 - age)) / ages;
  }
  function units(svg, event) {
    const frame = svg.getBoundingClientRect(), scale = box(svg).width / frame.width;
    return [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale];
  }
  function listen(svg) {
    const heat = svg.classList.contains("heat");
    const move = (x, y, py) => (heat ? cell(svg, x, y) : point(svg, x, py));
    const follow = (event) => move(...units(svg, event), event.clientY + 12);
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", () => hide(svg));
    svg.addEventListener("blur", () => hide(svg));
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const step = steps[event.key];
      if (event.key === "Escape") return hide(svg);
      if (!step || (!heat && step[1])) return;
      event.preventDefault();
      const { width, height } = box(svg);
      const wide = heat ? (width - LEFT - RIGHT) / svg.dataset.times : (width - LEFT - RIGHT) / 50;
      const tall = heat ? (height - TOP - BOTTOM) / svg.dataset.ages : 0;
      move(+(svg.dataset.x || LEFT) + step[0] * wide, +(svg.dataset.y || TOP) + step[1] * tall);
    });
  }

  function apply() {
    document.querySelectorAll("svg.chart").forEach(draw);
    document.querySelectorAll(".axis-name").forEach((one) => (one.textContent = NAMES[state.axis]));
    document.querySelectorAll("[data-run]").forEach((one) => {
      one.classList.toggle("off", state.hidden.has(+one.dataset.run));
    });
  }
  function start() {
    data = JSON.parse(document.getElementById("data").textContent);
    document.querySelectorAll("svg.chart,svg.heat").forEach(listen);
    document.querySelectorAll("input[name=axis]").forEach((input) => {
      input.checked = input.value === state.axis;
      input.addEventListener("change", () => { state.axis = input.value; apply(); });
    });
    document.querySelectorAll("input[data-series]").forEach((input) => {
      const run = +input.dataset.series;
      input.checked = !state.hidden.has(run);
      input.addEventListener("change", () => {
        state.hidden[input.checked ? "delete" : "add"](run);
        apply();
      });
    });
    apply();
  }

  // A page that is served looks every two seconds for rows that progress.csv has gained, and if
  // there are some asks for itself again.
  async function follow() {
    const status = () => document.getElementById("status");
    let since = Date.now();
    for (;;) {
      await new Promise((done) => setTimeout(done, 2000));
      try {
        const gained = await (await fetch(`progress.csv?from=${data.length}`)).text();
        if (gained) {
          const text = await (await fetch("./")).text();
          const fresh = new DOMParser().parseFromString(text, "text/html");
          const open = [...document.querySelectorAll("details")].map((one) => one.open);
          const focus = document.activeElement?.id;
          document.querySelector("main").replaceWith(fresh.querySelector("main"));
          document.querySelectorAll("details").forEach((one, i) => (one.open = open[i] ?? false));
          start();
          if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
          since = Date.now();
        }
        const quiet = Math.round((Date.now() - since) / 1000);
        status().textContent = quiet < 15 ? "live" : `no new rows for ${quiet} s`;
        status().className = quiet < 15 ? "live" : "quiet";
      } catch {
        status().textContent = "no longer served; this is the last state";
        status().className = "quiet";
      }
    }
  }

  document.documentElement.classList.add("js");
  start();
  if (document.body.dataset.live) follow();
})();
