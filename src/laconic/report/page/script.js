"use strict";
// Copying a line, sorting tables, zooming a timeline: the page reads the same without.
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined) copy(button);
  else if (button.dataset.zoom) zoom(button);
  else if (button.parentElement.matches("thead th")) sort(button.parentElement);
});

function copy(button) {
  const done = () => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const byHand = () => {
    const range = document.createRange();
    range.selectNodeContents(button.parentElement.querySelector("code"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    if (document.execCommand("copy")) done();
  };
  if (navigator.clipboard) navigator.clipboard.writeText(button.dataset.copy).then(done, byHand);
  else byHand();
}

function zoom(button) {
  const svg = button.closest(".block").querySelector("svg.lanes");
  const box = svg.parentElement;
  const middle = (box.scrollLeft + box.clientWidth / 2) / svg.clientWidth;
  const width = Math.min(Math.max(svg.clientWidth * Number(button.dataset.zoom), box.clientWidth), 60000);
  svg.style.width = width + "px";
  box.scrollLeft = middle * width - box.clientWidth / 2;
}

function sort(head) {
  const place = [...head.parentElement.children].indexOf(head);
  const rising = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  const body = head.closest("table").tBodies[0];
  const key = (row) => {
    const cell = row.children[place];
    if (head.classList.contains("number")) return cell.dataset.key === undefined ? null : Number(cell.dataset.key);
    return cell.textContent;
  };
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === "number" ? x - y : x.localeCompare(y);
    return rising ? order : -order;
  });
  body.append(...rows);
}
