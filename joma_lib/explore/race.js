const { erf, erfinv } = lib;
const growth = (Delta, t) => /*growth*/;
const endOf = Delta => /*end*/;
const commonRatio = (Delta, v) => /*common*/;
const fractions = spec.data.fractions;
return values => {
  const delta = [1, 2, 3, 4].map(l => values["delta" + l]);
  const largest = Math.max(...delta.map(Math.abs));
  const end = largest > 0 ? endOf(largest) : Infinity;
  const fraction = values.time / 100, t = largest > 0 ? end * fraction : Infinity;
  const at = part => delta.map(d => (d ? growth(d, part * end) : 0));
  const v = at(fraction);
  const weights = v.map(x => Math.exp((x * x) / 2)), total = weights.reduce((a, b) => a + b);
  const attention = weights.map(w => w / total);
  const winner = delta.findIndex(d => Math.abs(d) === largest);
  const common = largest > 0 && t > 0 ? commonRatio(delta[winner], v[winner]) : 0;
  const curves = fractions.map(at);
  const shapes = { cursor: [[fraction], [0]], attention: [[1, 2, 3, 4], attention], now: [v.map(() => fraction), v] };
  v.forEach((_, l) => (shapes["v" + (l + 1)] = [fractions, curves.map(row => row[l])]));
  const percent = 100 * attention[winner];
  return {
    numbers: { t, end, percent_of_end: 100 * fraction, v, attention, common, winner: winner + 1, percent, entropy: lib.entropy(attention) },
    shapes,
    sentence: largest > 0 ? 0 : 1,
  };
};
