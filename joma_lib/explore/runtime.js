// What every explorer shares: special functions, an adaptive integrator, drawing. One copy a block, nothing global.
const lib = {
  // erf by its series of positive terms: accurate to rounding for the |x| < 6 that can matter in float64.
  erf(x) {
    let term = x, sum = x;
    for (let n = 1; n < 200 && Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
      term *= (2 * x * x) / (2 * n + 1);
      sum += term;
    }
    return Math.abs(x) > 6 ? Math.sign(x) : (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
  },
  // Inverse of erf on (-1, 1): a rough start, then Halley's method.
  erfinv(p) {
    const log = Math.log(1 - p * p), a = 0.147, half = 2 / (Math.PI * a) + log / 2;
    let x = Math.sign(p) * Math.sqrt(Math.sqrt(half * half - log / a) - half);
    for (let i = 0; i < 4; i++) {
      const gap = (lib.erf(x) - p) * (Math.sqrt(Math.PI) / 2) * Math.exp(x * x);
      x -= gap / (1 + x * gap);
    }
    return x;
  },
  entropy: b => b.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0),
  // Dormand and Prince's pair of orders 5 and 4, step by step through the increasing times; the state at each of them.
  integrate(rate, start, times, rtol = 1e-10, atol = 1e-12) {
    const A = [
      [1 / 5],
      [3 / 40, 9 / 40],
      [44 / 45, -56 / 15, 32 / 9],
      [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
      [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
      [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    ];
    const E = [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40];
    const add = (y, k, weights, h) => y.map((yi, i) => yi + h * weights.reduce((sum, w, j) => sum + w * k[j][i], 0));
    let t = 0, y = start, h = times[0] || 1e-3, first = rate(y);
    return times.map(end => {
      while (t < end) {
        const step = Math.min(h, end - t), k = [first];
        let next = y;
        for (const weights of A) k.push(rate((next = add(y, k, weights, step))));
        const wrong = add(y.map(() => 0), k, E, step);
        const scale = i => atol + rtol * Math.max(Math.abs(y[i]), Math.abs(next[i]));
        const error = Math.sqrt(wrong.reduce((sum, e, i) => sum + (e / scale(i)) ** 2, 0) / y.length);
        const good = error <= 1;
        if (good) [t, y, first] = [step < end - t ? t + step : end, next, k[6]];
        const factor = Math.min(5, Math.max(0.2, 0.9 * (error + 1e-30) ** -0.2));
        if (!good || step === h || factor < 1) h = step * factor;
      }
      return y;
    });
  },
};
// --- the model of this explorer: values of the controls in; numbers, shapes [xs, ys] and the sentence to use out ---
const model = (() => {
/*MODEL*/
})();
// --- drawing ---
const place = (axis, size, value, flip) => {
  const [low, high, log] = axis, at = log ? Math.log10(value) : value;
  const part = (at - low) / (high - low);
  return (size * (flip ? 1 - part : part)).toFixed(1);
};
const trace = (kind, panel, [xs, ys]) => {
  const [width, height] = spec.size;
  const x = xs.map(value => place(panel.x, width, value)), y = ys.map(value => place(panel.y, height, value, true));
  const floor = panel.y[2] ? height : place(panel.y, height, Math.max(0, panel.y[0]), true);
  const drawn = i => i >= 0 && Number.isFinite(Number(x[i]) + Number(y[i]));
  const piece = {
    line: i => (drawn(i - 1) ? "L" : "M") + x[i] + " " + y[i],
    pairs: i => (i % 2 ? "L" : "M") + x[i] + " " + y[i],
    dots: i => `M${x[i]} ${y[i]}m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0`,
    squares: i => `M${x[i]} ${y[i]}m-4-4h8v8h-8z`,
    bars: i => `M${x[i]} ${floor}m-${panel.bar} 0V${y[i]}h${2 * panel.bar}V${floor}z`,
    cursor: i => `M${x[i]} 0V${height}`,
  }[kind];
  return xs.map((_, i) => (drawn(i) ? piece(i) : "")).join("");
};
const written = (value, digits) => {
  if (digits === "s") return String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "undefined" : value < 0 ? "−∞" : "∞";
  return (value === 0 || Number(value.toFixed(digits)) === 0 ? (0).toFixed(digits) : value.toFixed(digits)).replace("-", "−");
};
const look = (numbers, path) => path.split(".").reduce((value, key) => value[key], numbers);
const fill = (template, numbers) => template.replace(/\{([\w.]+):(\w)\}/g, (_, path, digits) => written(look(numbers, path), digits));
for (const root of document.querySelectorAll(`[data-explorer="${spec.key}"]:not([data-ready])`)) {
  const inputs = [...root.querySelectorAll("[data-control]")];
  const paths = new Map([...root.querySelectorAll("path[data-shape]")].map(path => [path.dataset.shape, path]));
  const update = () => {
    const values = Object.fromEntries(inputs.map(input => [input.dataset.control, Number(input.value)]));
    const state = model(values);
    for (const panel of spec.panels) {
      const hidden = panel.when !== null && values[panel.when[0]] !== panel.when[1];
      root.querySelector(`[data-panel="${panel.name}"]`).toggleAttribute("hidden", hidden);
      if (hidden) continue;
      for (const [name, kind] of panel.shapes) paths.get(name).setAttribute("d", trace(kind, panel, state.shapes[name]));
    }
    for (const input of inputs) {
      if (input.type !== "range") continue;
      const value = Number(input.value), { digits, log } = spec.controls[input.dataset.control];
      const text = spec.frames && input.dataset.control === spec.frames ? written(state.numbers.step, 0)
        : written(log ? 10 ** value : value, digits);
      input.setAttribute("aria-valuetext", text);
      input.parentElement.querySelector("b").textContent = text;
    }
    root.querySelector("[aria-live]").textContent = fill(spec.sentences[state.sentence || 0], state.numbers);
    root.dataset.numbers = JSON.stringify(state.numbers, (_, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value));
  };
  for (const input of inputs) {
    input.disabled = false;
    input.addEventListener("input", update);
  }
  root.dataset.ready = "";
  update();
}
