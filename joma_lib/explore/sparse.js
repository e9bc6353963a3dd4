const rate = (v, mu, s, tau, A) => /*rate*/;
const weight = (s, tau) => /*weight*/;
const { offsets, centre, v0, powers } = spec.data;
const times = powers.map(p => 10 ** p);
// A common shift of s = v² cancels in the softmax and keeps the exponentials small.
const shifted = v => {
  const s = v.map(x => x * x), top = Math.max(...s);
  return s.map(x => x - top);
};
const attentionOf = (v, tau) => {
  const w = shifted(v).map(s => weight(s, tau)), A = w.reduce((a, b) => a + b);
  return w.map(x => x / A);
};
let known = "", solved;
const solve = (T, spread) => {
  if (known === T + " " + spread) return solved;
  const tau = 2 * T * T, mu = offsets.map(o => centre + spread * o);
  const flow = v => {
    const s = shifted(v), A = s.reduce((sum, x) => sum + weight(x, tau), 0);
    return v.map((x, l) => rate(x, mu[l], s[l], tau, A));
  };
  const v = lib.integrate(flow, mu.map(() => v0), times);
  const attention = v.map(row => attentionOf(row, tau)), entropy = attention.map(lib.entropy);
  known = T + " " + spread;
  return (solved = { tau, mu, v, attention, entropy });
};
return values => {
  const { tau, mu, v, attention, entropy } = solve(values.T, values.spread);
  let at = 0;
  powers.forEach((p, i) => { if (Math.abs(p - values.time) < Math.abs(powers[at] - values.time)) at = i; });
  const bottom = Math.min(...entropy), low = entropy.findIndex(e => e <= bottom + 1e-6);
  const shapes = { cursor: [[times[at]], [0]], cursor_entropy: [[times[at]], [0]], entropy: [times, entropy], lowest: [[times[low]], [entropy[low]]] };
  mu.forEach((_, l) => (shapes["v" + l] = [times, v.map(row => row[l])]));
  shapes.attention = [mu.map((_, l) => l + 1), attention[at]];
  shapes.reached = [mu.map((_, l) => l + 1), v[at].map((x, l) => x / mu[l])];
  const last = entropy[entropy.length - 1], rebound = last - entropy[low], fall = entropy[0] - entropy[low];
  return {
    numbers: { t: times[at], tau, mu, v: v[at], attention: attention[at], entropy: entropy[at], lowest: entropy[low], lowest_time: times[low], last, rebound },
    shapes,
    sentence: fall < 0.05 ? 2 : rebound < 0.05 ? 1 : 0,
  };
};
