"use strict";
(function () {
  const data = JSON.parse(document.getElementById("lists").textContent);
  const $ = (id) => document.getElementById(id);
  const LISTED = 300, ROW = 30, FIRST = 10, LEVELS = 65535;

  function unpack(text, Kind) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Kind(bytes.buffer);
  }
  const Numbers = data.wide ? Uint32Array : Uint16Array;
  const kept = unpack(data.kept, Uint32Array), lengths = unpack(data.lengths, Uint32Array);
  const fold = data.fold === null ? null : unpack(data.fold, Uint8Array);
  const rows = unpack(data.rows, Numbers), ratings = unpack(data.ratings, data.levels.length < 256 ? Uint8Array : Uint16Array);
  // Where the documents of a query begin, and where the scores of its first ones do.
  const starts = new Uint32Array(kept.length + 1), tops = new Uint32Array(kept.length + 1);
  kept.forEach((n, i) => { starts[i + 1] = starts[i] + n; tops[i + 1] = tops[i] + Math.min(lengths[i], data.depth); });
  const lists = {};
  function listsOf(system) {
    if (!lists[system]) {
      const packed = data.lists[system];
      lists[system] = {
        ranks: unpack(packed.ranks, Numbers), scores: unpack(packed.scores, Uint16Array),
        low: unpack(packed.low, Float32Array), high: unpack(packed.high, Float32Array),
        values: packed.values.map((text) => unpack(text, Float32Array)),
      };
    }
    return lists[system];
  }

  const state = { left: null, right: null, query: 0, shown: FIRST, matches: [], picked: [] };

  // Everything that comes from the data goes in as text, never as markup.
  function make(name, options, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(options || {})) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }
  const number = (value, digits) => (Number.isNaN(value) ? "–" : value.toFixed(digits));
  const signed = (value) => (Number.isNaN(value) ? "–" : (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(4));
  const tone = (value) => (value > 1e-9 ? "up" : value < -1e-9 ? "down" : "");
  const shownMetric = (metric) => metric.replace(/^[a-z]+/, (name) => (name.length <= 4 ? name.toUpperCase() : name));

  function difference(query) {
    return listsOf(state.left).values[0][query] - listsOf(state.right).values[0][query];
  }
  const ratingOf = (level) => (level < data.levels.length ? String(data.levels[level]) : "unjudged");
  function tierClass(level) {
    if (level === data.levels.length) return "tier unjudged";
    const top = Math.max(1, data.levels.length - 1);
    return "tier tier" + (level === 0 ? 0 : Math.max(1, Math.round((4 * level) / top)));
  }
  const nameOf = (place) => (data.names === null ? "document " + rows[place] : data.names[place]);

  function match() {
    const text = $("find").value.trim().toLowerCase(), show = $("show").value, order = $("order").value;
    const wanted = [];
    for (let query = 0; query < data.queries.length; query++) {
      if (text && !data.queries[query].toLowerCase().includes(text)) continue;
      const sign = tone(difference(query));
      if ((show === "lost" && sign !== "down") || (show === "won" && sign !== "up") || (show === "tied" && sign !== "")) continue;
      wanted.push(query);
    }
    const left = listsOf(state.left).values[0];
    const keys = { loss: difference, win: (q) => -difference(q), low: (q) => left[q], data: (q) => q }[order];
    const last = (value) => (Number.isNaN(value) ? Infinity : value);
    const cached = new Map(wanted.map((q) => [q, last(keys(q))]));
    wanted.sort((a, b) => cached.get(a) - cached.get(b) || a - b);
    state.matches = wanted;
    if (!wanted.includes(state.query) && wanted.length) state.query = wanted[0];
  }

  function drawChoices() {
    const list = $("choices");
    list.replaceChildren(...state.matches.slice(0, LISTED).map((query) => {
      const gap = difference(query);
      const item = make("li", { role: "option", id: "choice-" + query, "aria-selected": String(query === state.query) },
        make("span", { title: data.queries[query] }, data.queries[query]), make("span", { class: tone(gap) }, signed(gap)));
      item.addEventListener("click", () => { choose(query); list.focus({ preventScroll: true }); });
      return item;
    }));
    const n = state.matches.length, more = n > LISTED ? ", first " + LISTED + " listed" : "";
    $("count").textContent = n.toLocaleString("en") + (n === 1 ? " query" : " queries") + more;
    list.setAttribute("aria-activedescendant", "choice-" + state.query);
  }

  function ranked(system, query) {
    const ranks = listsOf(system).ranks, places = [];
    for (let place = starts[query]; place < starts[query + 1]; place++) if (ranks[place] <= data.depth) places.push(place);
    return places.sort((a, b) => ranks[a] - ranks[b]);
  }

  function drawHead() {
    const query = state.query, sides = [state.left, state.right].map((system) => {
      const values = listsOf(system).values;
      const said = data.metrics.map((metric, i) => make("span", { "data-metric": metric },
        shownMetric(metric) + " " + number(values[i][query], 4)));
      return make("div", {}, make("strong", {}, system), ...said);
    });
    const where = fold === null ? "" : ", fold " + (fold[query] + 1);
    const title = make("h3", {}, "Query " + data.queries[query],
      make("small", { class: "note" }, "  " + lengths[query].toLocaleString("en") + " documents" + where));
    $("query-head").replaceChildren(title, make("div", { class: "sides" }, ...sides));
  }

  function drawList(node, system, other, places) {
    const own = listsOf(system), others = listsOf(other), query = state.query;
    const low = own.low[query], high = own.high[query];
    const digits = Math.min(6, Math.max(2, 3 - Math.floor(Math.log10(Math.max(high - low, 1e-9)))));
    node.setAttribute("aria-label", system);
    node.replaceChildren(...places.map((place) => {
      const score = low + (own.scores[tops[query] + own.ranks[place] - 1] / LEVELS) * (high - low), level = ratings[place];
      const moved = others.ranks[place] - own.ranks[place];
      const away = others.ranks[place] > state.shown ? make("small", { class: "away" }, "there: " + others.ranks[place]) : "";
      const said = nameOf(place) + ", rank " + own.ranks[place] + ", rating " + ratingOf(level) + ", " + other + " has it at " + others.ranks[place];
      const item = make("li", { "data-place": place, title: said, role: "button", tabindex: "0",
        "aria-pressed": String(state.picked.includes(place)) },
        make("span", { class: "rank" }, String(own.ranks[place])),
        make("span", { class: tierClass(level) }, level < data.levels.length ? ratingOf(level) : "–"),
        make("span", { class: "name" }, nameOf(place), away),
        make("span", { class: "score" }, number(score, digits)));
      item.dataset.moved = String(moved);
      item.addEventListener("click", () => pick(place));
      item.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(place); }
      });
      item.addEventListener("mouseenter", () => light(place));
      item.addEventListener("mouseleave", () => light(null));
      return item;
    }));
  }

  function drawLinks(left, right) {
    const holder = $("links"), width = holder.clientWidth, height = ROW * Math.max(left.length, right.length);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 " + width + " " + height);
    svg.setAttribute("height", height);
    const at = new Map(right.map((place, i) => [place, i]));
    left.forEach((place, i) => {
      if (!at.has(place)) return;
      const from = ROW * (i + 0.5), to = ROW * (at.get(place) + 0.5), path = document.createElementNS(svg.namespaceURI, "path");
      path.setAttribute("d", "M2 " + from + "C" + width / 2 + " " + from + " " + width / 2 + " " + to + " " + (width - 2) + " " + to);
      path.setAttribute("class", i < at.get(place) ? "up" : i > at.get(place) ? "down" : "");
      path.dataset.place = place;
      svg.append(path);
    });
    holder.replaceChildren(svg);
  }

  function light(place) {
    for (const node of document.querySelectorAll("#stage [data-place]")) {
      node.classList.toggle("lit", place !== null && node.dataset.place === String(place));
    }
  }

  // Two documents are compared: those that were clicked, or the swap that the page found.
  function pick(place) {
    const at = state.picked.indexOf(place);
    if (at >= 0) state.picked.splice(at, 1);
    else state.picked = [...state.picked.slice(-1), place];
    for (const item of document.querySelectorAll("#stage li")) {
      item.setAttribute("aria-pressed", String(state.picked.includes(Number(item.dataset.place))));
    }
    drawWhy();
  }

  function placeOf(row) {
    for (let place = starts[state.query]; place < starts[state.query + 1]; place++) if (rows[place] === row) return place;
    return -1;
  }

  function pairToShow() {
    if (state.picked.length === 2) return state.picked;
    const swap = data.swaps.find((one) => one.query === state.query);
    if (state.picked.length || !swap) return null;
    const pair = [placeOf(swap.above_row), placeOf(swap.below_row)];
    return pair.includes(-1) ? null : pair;
  }

  // What each feature adds to the score of one document over that of another; null where the page has no such numbers.
  function contributions(system, above, below) {
    const found = (data.explained[system] || {})[state.query];
    if (!found) return null;
    const [a, b] = [above, below].map((place) => found.rows.indexOf(rows[place]));
    if (a < 0 || b < 0) return null;
    return found.features.map((feature, j) => [feature, found.values[a][j] - found.values[b][j]]);
  }

  function sideOf(system, above, below, found, most) {
    const ranks = listsOf(system).ranks;
    const head = make("h4", {}, system + ": ranks " + ranks[above] + " and " + ranks[below]);
    if (!found) return make("div", {}, head, make("p", { class: "note" }, "Its features are not in this page for these two documents."));
    const body = [...found].sort((x, y) => Math.abs(y[1]) - Math.abs(x[1])).map(([feature, value]) => {
      const bar = make("i", { class: tone(value) });
      bar.style.width = (4.4 * Math.abs(value) / most).toFixed(2) + "rem";
      return make("tr", {}, make("th", { scope: "row" }, feature), make("td", {}, signed(value)),
        make("td", {}, make("span", { class: "bar" }, bar)));
    });
    const total = found.reduce((sum, row) => sum + row[1], 0);
    return make("div", {}, head, make("p", { class: "note" }, "The scores differ by " + signed(total) + "; the rows sum to it."),
      make("table", {}, make("tbody", {}, ...body)));
  }

  function drawWhy() {
    const pair = pairToShow();
    if (!pair) {
      const words = state.picked.length ? "Click a second document to compare it with " + nameOf(state.picked[0]) + "."
        : "Click two documents, or press Enter on them, to compare them.";
      $("why").replaceChildren(make("p", { class: "note" }, words));
      return;
    }
    const ranks = listsOf(state.left).ranks, [above, below] = ranks[pair[0]] <= ranks[pair[1]] ? pair : [pair[1], pair[0]];
    const sides = state.left === state.right ? [state.left] : [state.left, state.right];
    const found = sides.map((system) => contributions(system, above, below));
    const most = Math.max(1e-12, ...found.flatMap((one) => (one || []).map((row) => Math.abs(row[1]))));
    const said = "Ratings " + ratingOf(ratings[above]) + " and " + ratingOf(ratings[below]) +
      ". Bars to the right speak for " + nameOf(above) + ", to the left for " + nameOf(below) + ", on one scale.";
    $("why").replaceChildren(make("h3", {}, nameOf(above) + " above " + nameOf(below)), make("p", { class: "note" }, said),
      make("div", { class: "sides" }, ...sides.map((system, i) => sideOf(system, above, below, found[i], most))));
  }

  function draw() {
    const left = ranked(state.left, state.query), right = ranked(state.right, state.query);
    const cut = (places) => places.slice(0, state.shown);
    drawHead();
    drawList($("list-left"), state.left, state.right, cut(left));
    drawList($("list-right"), state.right, state.left, cut(right));
    drawLinks(cut(left), cut(right));
    $("more").hidden = Math.max(left.length, right.length) <= state.shown;
    drawWhy();
  }

  function choose(query) {
    state.query = query;
    state.shown = FIRST;
    state.picked = [];
    for (const item of $("choices").children) item.setAttribute("aria-selected", String(item.id === "choice-" + query));
    $("choices").setAttribute("aria-activedescendant", "choice-" + query);
    draw();
  }

  function step(by) {
    const at = state.matches.indexOf(state.query), next = state.matches[Math.min(state.matches.length - 1, Math.max(0, at + by))];
    if (next === undefined) return;
    choose(next);
    const item = $("choice-" + next);
    if (item) item.scrollIntoView({ block: "nearest" });
  }

  function refresh() { state.picked = []; match(); drawChoices(); if (state.matches.length) draw(); }

  function start() {
    for (const side of ["left", "right"]) {
      $(side).replaceChildren(...data.systems.map((system) => make("option", { value: system }, system)));
    }
    const mean = (system) => {
      const known = Array.from(listsOf(system).values[0]).filter((value) => !Number.isNaN(value));
      return known.reduce((a, b) => a + b, 0) / known.length;
    };
    const others = data.systems.filter((system) => system !== data.baseline);
    state.right = data.baseline;
    state.left = others.length ? others.reduce((a, b) => (mean(a) >= mean(b) ? a : b)) : data.baseline;
    $("left").value = state.left;
    $("right").value = state.right;
    for (const side of ["left", "right"]) $(side).addEventListener("change", () => { state[side] = $(side).value; refresh(); });
    for (const id of ["order", "show"]) $(id).addEventListener("change", () => { const first = id === "order"; refresh(); if (first && state.matches.length) { choose(state.matches[0]); $("choices").scrollTop = 0; } });
    $("find").addEventListener("input", refresh);
    $("more").addEventListener("click", () => { state.shown += 20; draw(); });
    const key = data.levels.length > 12 ? [] : data.levels.map((rating, level) => make("span", { class: tierClass(level) }, String(rating)));
    $("tier-key").replaceChildren("Rating ", ...key);
    window.addEventListener("resize", () => draw());
    document.addEventListener("keydown", (event) => {
      const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape" && typing) { document.activeElement.blur(); return; }
      const inSearch = document.activeElement === $("find"), arrows = document.activeElement === $("choices") || inSearch;
      if ((event.key === "ArrowDown" && arrows) || (event.key === "j" && !typing)) step(1);
      else if ((event.key === "ArrowUp" && arrows) || (event.key === "k" && !typing)) step(-1);
      else if (event.key === "/" && !typing) $("find").focus();
      else if (event.key === "x" && !typing) {
        [state.left, state.right] = [state.right, state.left];
        $("left").value = state.left; $("right").value = state.right;
        refresh();
      } else return;
      event.preventDefault();
    });
    match();
    if (state.matches.length) state.query = state.matches[0];
    drawChoices();
    draw();
  }
  start();
})();
