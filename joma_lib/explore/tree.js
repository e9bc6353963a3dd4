const together = (rho, rho_m, rho_l, both, L, H) => /*together*/;
const apart = (rho, rho_m, rho_l, both, L, H) => /*apart*/;
return values => {
  const { rho, rho_0, L } = values, H = Math.min(values.H, L);
  const both = rho_0 * rho_0 - ((1 - Math.abs(rho_0)) / 2) ** 2;
  const at = height => (height < L ? together : apart)(rho, rho_0, rho_0, both, L, height);
  const heights = Array.from({ length: L }, (_, i) => i + 1), p = heights.map(at);
  const place = (height, i) => [(i + 0.5) / 2 ** (L - height), height];
  const pairs = edges => [edges.flatMap(([a, b]) => [a[0], b[0]]), edges.flatMap(([a, b]) => [a[1], b[1]])];
  const edges = heights.flatMap(h => Array.from({ length: 2 ** (L - h + 1) }, (_, i) => [place(h - 1, i), place(h, i >> 1)]));
  const partner = 2 ** (H - 1), up = i => heights.slice(0, H).map(h => [place(h - 1, i >> (h - 1)), place(h, i >> h)]);
  const under = Array.from({ length: 2 ** (H - 1) }, (_, i) => place(0, partner + i));
  const meet = place(H, 0), columns = points => [points.map(a => a[0]), points.map(a => a[1])];
  const leaves = Array.from({ length: 2 ** L }, (_, i) => i);
  const base = (1 - rho ** (L - 1) * rho_0) / 2;
  return {
    numbers: { H, L, rho, both, p, now: p[H - 1], base, lift: p[H - 1] / base },
    shapes: {
      edges: pairs(edges), path: pairs([...up(0), ...up(partner)]), given: columns([place(0, 0)]), partners: columns(under), meet: columns([meet]),
      curve: [heights, p], chosen: [[H], [p[H - 1]]], base: [[1, L], [base, base]],
      leaves: [leaves.map(i => place(0, i)[0]), leaves.map(i => (i ? p[31 - Math.clz32(i)] : 1))],
    },
    sentence: H === L ? 1 : 0,
  };
};
