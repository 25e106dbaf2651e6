"use strict";
(function () {
  document.documentElement.classList.add("js");

  // charts
  var config = JSON.parse(document.getElementById("chart-config").textContent);
  var views = [];
  document.querySelectorAll("script[data-chart]").forEach(function (data) {
    var place = document.getElementById(data.dataset.chart);
    vegaEmbed(place, JSON.parse(data.textContent), {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, config: config,
    }).then(function (drawn) {
      place.style.setProperty("--height", "0");
      views.push({ view: drawn.view, place: place });
    }).catch(function (error) {
      place.textContent = "This chart could not be drawn (" + error.message + "). Its numbers stand in the table beneath it.";
    });
  });

  // on paper: drawn at the width of the page, so that their text keeps its size
  function fit(width) {
    views.forEach(function (each) {
      each.view.signal("width", width(each.place)).run();
    });
  }
  window.addEventListener("beforeprint", function () {
    fit(function (place) { return place.closest(".pair:not(.single), .with-strip") ? 318 : 660; });
  });
  window.addEventListener("afterprint", function () {
    fit(function (place) { return place.clientWidth; });
  });

  // tables that sort by a column
  document.querySelectorAll("table[data-sortable]").forEach(function (table) {
    var body = table.tBodies[0];
    var original = Array.from(body.rows);
    Array.from(table.tHead.rows[0].cells).forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.append.apply(button, Array.from(head.childNodes));
      head.append(button);
      button.addEventListener("click", function () {
        var now = head.getAttribute("aria-sort");
        var next = now === "ascending" ? "descending" : now === "descending" ? null : "ascending";
        Array.from(head.parentNode.cells).forEach(function (each) { each.removeAttribute("aria-sort"); });
        var rows = original.slice();
        if (next) {
          head.setAttribute("aria-sort", next);
          rows.sort(function (a, b) {
            var order = compare(a.cells[column], b.cells[column]);
            return order === null ? missing(a.cells[column]) - missing(b.cells[column]) : next === "ascending" ? order : -order;
          });
        }
        body.append.apply(body, rows);
      });
    });
  });
  // a cell without a value stands last, whichever way the others run
  function missing(cell) { return cell.textContent.trim() === "–" ? 1 : 0; }
  function compare(a, b) {
    if (missing(a) || missing(b)) return null;
    if (a.dataset.sort !== undefined && b.dataset.sort !== undefined) return Number(a.dataset.sort) - Number(b.dataset.sort);
    return a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  }

  // commands that copy
  document.querySelectorAll("pre.command").forEach(function (block) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", function () {
      var range = document.createRange();
      range.selectNodeContents(block.querySelector("code"));
      var selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      var done = document.execCommand("copy");
      button.textContent = done ? "Copied" : "Selected";
      setTimeout(function () { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  });
})();
