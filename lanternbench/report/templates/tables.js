"use strict";
const all = (query, from = document) => [...from.querySelectorAll(query)];

// tables: a click sorts, another one reverses; cells without a value stay last
for (const table of all("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const key = cell => cell.dataset.value === undefined ? cell.textContent : cell.dataset.value === "" ? null : Number(cell.dataset.value);
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
    const rows = [...body.rows].map(row => [row, key(row.cells[column])]);
    rows.sort(([, a], [, b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return down * (typeof a === "number" ? a - b : a.localeCompare(b));
    });
    rows.forEach(([row]) => body.append(row));
  }));
}
function fold(box) {
  for (const row of box.closest(".sheet").querySelector("table").rows)
    row.cells[Number(box.dataset.column)].classList.toggle("folded", !box.checked);
}
for (const box of all("[data-column]")) box.addEventListener("change", () => fold(box));
for (const sheet of all(".sheet")) {  // too wide: columns fold until the table fits
  const boxes = all("[data-column]:checked", sheet), first = boxes.filter(box => "first" in box.dataset);
  const order = [...first, ...boxes.filter(box => !first.includes(box))].reverse().sort((a, b) => first.includes(b) - first.includes(a));
  const room = sheet.querySelector(".scroll");
  while (order.length && room.scrollWidth > room.clientWidth + 1) { order[0].checked = false; fold(order.shift()); }
}
