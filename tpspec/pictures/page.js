"use strict";
const readout = document.getElementById("readout");

function tell(cell) {
  readout.hidden = !cell;
  if (!cell) return;
  const one = !cell.hasAttribute("colspan");
  const words = (cell.querySelector(".unseen") || cell).textContent;
  readout.replaceChildren(cell.parentNode.dataset.name, one ? ` · rank ${cell.cellIndex - 1}` : "", `: ${words}`);
}

for (const map of document.querySelectorAll("table.map")) {
  const rows = [...map.rows].filter((row) => row.querySelector("td"));
  const at = (row, column) => row.cells[Math.min(Math.max(column, 1), row.cells.length - 1)];
  let column = 1;
  let current = at(rows[0], column);
  current.tabIndex = 0;
  map.addEventListener("pointerover", (event) => tell(event.target.closest("td")));
  map.addEventListener("pointerleave", () => tell(map.contains(document.activeElement) ? current : null));
  map.addEventListener("focusout", () => tell(null));
  map.addEventListener("focusin", (event) => {
    current.tabIndex = -1;
    current = event.target.closest("td");
    current.tabIndex = 0;
    tell(current);
  });
  map.addEventListener("keydown", (event) => {
    const row = rows.indexOf(current.parentNode);
    if (!current.hasAttribute("colspan")) column = current.cellIndex;
    const last = Math.max(...rows.map((each) => each.cells.length - 1));
    const to = {
      ArrowRight: [row, column + 1], ArrowLeft: [row, column - 1], ArrowDown: [row + 1, column],
      ArrowUp: [row - 1, column], Home: [row, 1], End: [row, last],
    }[event.key];
    if (event.key === "Escape") current.blur();
    if (!to || !rows[to[0]]) return;
    event.preventDefault();
    column = Math.min(Math.max(to[1], 1), last);
    at(rows[to[0]], column).focus();
  });
}
