// pictures: one at a time next to the answer; a point says its figures
const chooser = document.getElementById("metric"), plots = all("figure.plot");
if (chooser) chooser.addEventListener("change", () => all(".first figure.plot").forEach((plot, i) => { plot.hidden = i !== Number(chooser.value); }));
for (const plot of plots) for (const point of all(".point", plot)) for (const kind of ["pointerenter", "focus", "click"])
  point.addEventListener(kind, () => {
    plot.querySelector(".said").textContent = point.getAttribute("aria-label");
    all(".point", plot).forEach(other => other.classList.toggle("chosen", other === point));
  }, { passive: true, once: false, capture: kind === "focus" });

// images
const page = document.querySelector("main"), detail = document.getElementById("detail"), cut = document.getElementById("cut");
const cells = all("button.cell");
let open = null;
for (const button of all("[data-show]")) button.addEventListener("click", () => {
  page.dataset.view = button.dataset.show;
  for (const other of all("[data-show]")) other.setAttribute("aria-pressed", other === button);
});
function labelled(id, cell, kind, words) {
  const caption = document.createElement("figcaption"), legend = cell.closest(".one").querySelector(".for-" + kind);
  caption.textContent = words;
  if (legend) { const copy = legend.cloneNode(true); copy.querySelector("b").remove(); caption.append(copy); }
  document.getElementById(id).replaceChildren(cell.querySelector("." + kind).cloneNode(true), caption);
}
function show(cell) {
  open = cell;
  document.getElementById("detail-title").textContent = cell.dataset.label;
  document.getElementById("detail-prompt").textContent = cell.dataset.prompt;
  const own = cell.querySelector(".image").cloneNode(true), base = all(".cell", cell.closest("tr")).find(other => "baseline" in other.dataset);
  const images = [own], compared = base && base !== cell && base.querySelector("img.image");
  if (compared) { const copy = compared.cloneNode(true); copy.classList.add("over"); images.push(copy); }
  document.getElementById("compare").replaceChildren(...images);
  document.getElementById("compare-said").textContent = compared ? "ar's image left of the slider, this one right of it" : "image";
  cut.hidden = !compared;
  labelled("detail-accept", cell, "accept", "accepted length");
  labelled("detail-depth", cell, "depth", "tree depth");
  document.getElementById("detail-facts").replaceChildren(...cell.dataset.facts.split("|").map(fact => {
    const item = document.createElement("li"); item.textContent = fact; return item;
  }));
  if (!detail.open) detail.showModal();
}
for (const cell of cells) cell.addEventListener("click", () => show(cell));
cut.addEventListener("input", () => document.getElementById("compare").style.setProperty("--cut", cut.value + "%"));
detail.addEventListener("click", event => { if (event.target === detail || event.target.className === "close") detail.close(); });
detail.addEventListener("keydown", event => {
  const row = open.closest("tr"), rows = [...row.parentNode.rows], own = all(".cell", row), at = own.indexOf(open);
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!step || event.target === cut) return;
  const line = rows[rows.indexOf(row) + step[0]], next = line && all(".cell", line)[at + step[1]];
  if (next) show(next);
  event.preventDefault();
});
