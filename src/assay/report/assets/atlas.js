"use strict";
(function () {
  var data = JSON.parse(document.getElementById("atlas-data").textContent);
  var table = document.getElementById("atlas");
  var form = document.getElementById("filters");
  var tip = document.getElementById("tip");
  var rows = Array.from(table.tBodies[0].rows);
  var count = form.querySelector("output");
  var FIELDS = ["family", "kind", "norm", "placement", "positions", "activation", "attention"];

  function make(tag, words, kind) {
    var element = document.createElement(tag);
    if (words !== undefined) element.textContent = words;
    if (kind) element.className = kind;
    return element;
  }
  function list(items, kind) {
    var found = make("ul", undefined, kind);
    items.forEach(function (item) { found.append(make("li", item)); });
    return found;
  }
  function id(row) { return row.id.slice(2); }
  function sources(numbers) { return numbers.map(function (n) { return data.sources[n]; }); }

  // what each row is searched by
  var texts = rows.map(function (row) {
    var cells = Array.from(row.cells).map(function (cell) { return cell.textContent; });
    return (id(row) + " " + cells.join(" ") + " " + data.models[id(row)].words).toLowerCase();
  });

  // filters
  function passes(row, index) {
    var model = data.models[id(row)], f = form.elements;
    if (f.disputed.checked && !model.disputes.length) return false;
    if (f.recipe.checked && row.cells[row.cells.length - 1].textContent !== "yes") return false;
    var year = Number(model.values.year);
    if (f.since.value && !(year >= Number(f.since.value))) return false;
    if (f.until.value && !(year && year <= Number(f.until.value))) return false;
    if (!FIELDS.every(function (name) { return !f[name].value || model.values[name] === f[name].value; })) return false;
    return f.find.value.toLowerCase().split(/\s+/).every(function (word) { return texts[index].includes(word); });
  }
  var left = new Set();
  function filter() {
    left = new Set();
    rows.forEach(function (row, index) {
      var shown = passes(row, index);
      row.hidden = !shown;
      if (!shown) close(row);
      else left.add(id(row));
    });
    count.textContent = left.size + " of " + rows.length + " models";
    Array.from(form.elements).forEach(function (each) {
      if (each.tagName === "SELECT" || each.type === "search") each.classList.toggle("set", Boolean(each.value));
    });
    dim();
  }
  function dim() {
    document.querySelectorAll("#models .chart svg path").forEach(function (dot) {
      var name = idOf(dot);
      if (name) dot.style.opacity = left.has(name) ? "" : "0.08";
    });
  }
  function idOf(element) {
    var item = element.__data__;
    item = Array.isArray(item) ? item[0] : item;
    return item && item.datum && data.models[item.datum.id] ? item.datum.id : null;
  }
  form.addEventListener("input", filter);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  form.addEventListener("reset", function () { setTimeout(filter, 0); });

  // a model, opened
  function close(row) {
    var next = row.nextElementSibling;
    if (next && next.classList.contains("more")) next.remove();
    row.querySelector(".open").setAttribute("aria-expanded", "false");
  }
  function group(fact, model) {
    var section = make("section");
    section.append(make("h4", fact[0]));
    var names = make("dl");
    fact[2].forEach(function (pair) {
      var quiet = pair[0] === "not found" || pair[0] === "none" ? "unsaid" : "";
      names.append(make("dt", pair[0], quiet), make("dd", pair[1], quiet));
    });
    section.append(names);
    section.title = "From: " + sources(model.sources[fact[1]] || []).join("; ");
    return section;
  }
  function part(title, items, kind) {
    var section = make("section");
    section.append(make("h4", title), list(items, kind));
    return section;
  }
  function content(row) {
    var model = data.models[id(row)], box = make("div", undefined, "opened");
    box.append(make("p", model.head + "; id " + id(row)));
    if (model.disputes.length) box.append(part("Where sources disagree", model.disputes));
    if (model.notes.length) box.append(part("Notes", model.notes));
    var groups = make("div", undefined, "groups");
    model.facts.forEach(function (fact) { groups.append(group(fact, model)); });
    box.append(groups);
    if (model.recipe.length) box.append(part("Recipe", model.recipe));
    [["Sources of the architecture", "arch"], ["Sources of the parameter count", "count"], ["Sources of the training", "training"]].forEach(function (pair) {
      var found = sources(model.sources[pair[1]] || []);
      if (found.length) box.append(part(pair[0], found, "where"));
    });
    return box;
  }
  function open(row) {
    var more = document.createElement("tr"), cell = document.createElement("td");
    more.className = "more";
    cell.colSpan = row.cells.length;
    var box = content(row);
    box.style.width = table.parentNode.clientWidth + "px";
    cell.append(box);
    more.append(cell);
    row.after(more);
    row.querySelector(".open").setAttribute("aria-expanded", "true");
  }
  function show(name) {
    var row = document.getElementById("m-" + name);
    if (!row) return;
    if (row.hidden) { form.reset(); filter(); }
    if (row.querySelector(".open").getAttribute("aria-expanded") !== "true") open(row);
    table.parentNode.scrollIntoView({ block: "start" });
    table.parentNode.scrollTop += row.getBoundingClientRect().top - table.parentNode.getBoundingClientRect().top - table.tHead.offsetHeight;
    table.parentNode.scrollLeft = 0;
    row.querySelector(".open").focus({ preventScroll: true });
  }
  table.addEventListener("click", function (event) {
    var button = event.target.closest(".open");
    if (!button) return;
    var row = button.closest("tr");
    if (button.getAttribute("aria-expanded") === "true") close(row);
    else open(row);
  });
  // before a column sorts, what is opened closes: it belongs under its model
  table.tHead.addEventListener("click", function () { rows.forEach(close); }, true);
  document.addEventListener("click", function (event) {
    var link = event.target.closest && event.target.closest('a[href^="#m-"]');
    if (link) { event.preventDefault(); show(link.getAttribute("href").slice(3)); return; }
    var dot = event.target.closest && event.target.closest(".chart path");
    if (dot && idOf(dot)) show(idOf(dot));
  });
  window.addEventListener("resize", function () {
    document.querySelectorAll(".opened").forEach(function (box) { box.style.width = table.parentNode.clientWidth + "px"; });
  });

  // where a value comes from
  function story(cell) {
    if (cell.dataset.s !== undefined) return { title: "", disputes: [], sources: sources(cell.dataset.s.split(" ").map(Number)) };
    var row = cell.closest("#atlas tbody tr");
    if (!row || row.classList.contains("more") || !cell.cellIndex) return null;
    var index = cell.cellIndex - 1, column = data.columns[index], model = data.models[id(row)];
    var words = (model.touched[index] || []).map(function (n) { return model.disputes[n]; });
    var value = cell.firstChild ? cell.firstChild.textContent : "";
    if (!column.source) return { title: value === "yes" ? "A recipe can express it" : model.recipe.join("; "), disputes: [], sources: [] };
    return { title: column.title + ": " + value, disputes: words, sources: sources(model.sources[column.source] || []) };
  }
  function tell(cell) {
    var told = story(cell);
    if (!told) return hush();
    tip.replaceChildren();
    if (told.title) tip.append(make("p", told.title));
    told.disputes.forEach(function (words) {
      var line = make("p");
      line.append(make("span", "≠", "disputed"), words);
      tip.append(line);
    });
    if (told.sources.length) tip.append(list(told.sources));
    tip.hidden = false;
    var at = cell.getBoundingClientRect(), size = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(at.left, window.innerWidth - size.width - 8)) + "px";
    tip.style.top = (at.bottom + size.height + 8 < window.innerHeight ? at.bottom + 4 : Math.max(8, at.top - size.height - 4)) + "px";
  }
  function hush() { tip.hidden = true; }
  document.addEventListener("mouseover", function (event) {
    var cell = event.target.closest && event.target.closest("#atlas tbody td, [data-s]");
    if (cell) tell(cell);
    else hush();
  });
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") hush(); });
  document.addEventListener("scroll", hush, true);

  // the form keeps its values over a reload in some browsers
  filter();
  document.querySelectorAll("#models .chart").forEach(function (place) {
    new MutationObserver(dim).observe(place, { childList: true, subtree: true });
  });
  if (location.hash.indexOf("#m-") === 0) show(decodeURIComponent(location.hash.slice(3)));
})();
