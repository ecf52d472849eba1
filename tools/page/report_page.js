// What a page of figures does beyond showing: tables sort, the flag is copied, data is saved.
"use strict";
(() => {
  const all = (where, what) => [...where.querySelectorAll(what)];

  // A cell's number, if it has one, else its text; what is missing comes last either way.
  const value = cell => "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent;
  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), "en", {numeric: true});
  function sort(table, column, heading) {
    const falling = heading.getAttribute("aria-sort") === "ascending";
    all(table, "th").forEach(th => th.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const rows = all(table.tBodies[0], "tr");
    rows.sort((a, b) => {
      const left = a.cells[column], right = b.cells[column];
      const missing = ("none" in left.dataset) - ("none" in right.dataset);
      return missing || (falling ? -1 : 1) * compare(value(left), value(right));
    });
    table.tBodies[0].append(...rows);
  }
  for (const table of all(document, "table")) {
    all(table, "th").forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Sort by this column";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, column, heading));
      heading.append(button);
    });
  }

  for (const box of all(document, ".flag")) {
    const button = document.createElement("button");
    button.className = "small";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(box.querySelector("code").textContent);
        button.textContent = "Copied";
      } catch (error) {
        getSelection().selectAllChildren(box.querySelector("code"));
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    box.append(button);
  }

  const save = document.createElement("button");
  save.className = "small";
  save.textContent = "Save the data (JSON)";
  save.addEventListener("click", () => {
    const text = document.getElementById("kvart-data").textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(
      new Blob([JSON.stringify(JSON.parse(text), null, 2)], {type: "application/json"}));
    link.download = "kvart.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  document.querySelector(".foot").append(save);

  // What was chosen stays chosen, where the browser keeps it.
  for (const input of all(document, ".bar input")) {
    try {
      const kept = localStorage.getItem("kvart " + input.id);
      if (kept !== null) input.checked = kept === "1";
    } catch (error) { /* not allowed to keep anything */ }
    input.addEventListener("change", () => {
      try {
        for (const each of all(document, ".bar input")) {
          localStorage.setItem("kvart " + each.id, each.checked ? "1" : "0");
        }
      } catch (error) { /* the choice holds for this page */ }
    });
  }
})();
