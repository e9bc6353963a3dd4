return values => {
  const frames = spec.data.frames[values.kind || 0], at = values.frame;
  const shapes = { ...frames.fixed };
  for (const name of Object.keys(frames.moving)) shapes[name] = frames.moving[name][at];
  const numbers = { ...frames.words };
  for (const name of Object.keys(frames.numbers)) numbers[name] = frames.numbers[name][at];
  return { numbers, shapes, sentence: frames.sentence };
};
