// races: a cell of an image is covered until its token is committed; nothing moves by itself
for (const race of all(".race")) {
  const play = race.querySelector(".play"), duration = race.querySelector("select");
  const slider = race.querySelector("input"), clock = race.querySelector("output");
  const lanes = all("figure", race).map(figure => {
    const canvas = figure.querySelector("canvas"), state = figure.querySelector("span");
    return { canvas, state, result: state.textContent, times: canvas.dataset.times.split(" ").map(Number) };
  });
  const end = Math.max(...lanes.flatMap(lane => lane.times));  // milliseconds
  let now = end, last = 0, request = 0;

  function cover({ canvas, state, result, times }) {
    const pen = canvas.getContext("2d");
    let drawn = 0;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.fillStyle = getComputedStyle(canvas).color;
    times.forEach((time, cell) => {
      if (now > 0 && time <= now) drawn += 1;
      else pen.fillRect(cell % canvas.width, Math.floor(cell / canvas.width), 1, 1);
    });
    state.textContent = drawn < times.length ? `${drawn} of ${times.length} tokens` : result;
  }
  function show(time) {
    now = Math.min(time, end);
    slider.value = slider.max * now / end;
    clock.textContent = `${(now / 1000).toFixed(2)} s`;
    lanes.forEach(cover);
  }
  function pause() {
    cancelAnimationFrame(request);
    request = 0;
    play.textContent = "Play";
  }
  function advance(at) {
    show(now + (at - last) * end / (1000 * duration.value));
    last = at;
    if (now < end) request = requestAnimationFrame(advance);
    else pause();
  }
  function start() {
    pause();
    if (now === end) show(0);
    play.textContent = "Pause";
    last = performance.now();
    request = requestAnimationFrame(advance);
  }
  play.addEventListener("click", () => request ? pause() : start());
  race.querySelector(".restart").addEventListener("click", () => { show(0); start(); });
  slider.addEventListener("input", () => { pause(); show(end * slider.value / slider.max); });
  addEventListener("beforeprint", () => { pause(); show(end); });
  show(end);
}
