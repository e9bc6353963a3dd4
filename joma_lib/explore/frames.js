return values => {
  const frames = spec.data.frames[values.kind || 0], at = values.frame;
  const shapes = { ...frames.fixed };
  for (const [name, [xs, ys]] of Object.entries(frames.moving)) shapes[name] = [Array.isArray(xs[0]) ? xs[at] : xs, ys[at]];
  const numbers = { ...frames.words };
  for (const name of Object.keys(frames.numbers)) numbers[name] = frames.numbers[name][at];
  return { numbers, shapes, sentence: frames.sentence };
};
