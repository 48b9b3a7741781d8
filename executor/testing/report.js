// Search, filter and keys of the HTML report. Works on what is there already: makes no markup from text.
"use strict";
(() => {
  const tools = document.querySelector(".tools");
  const search = document.getElementById("search");
  const none = document.getElementById("none");
  const cases = Array.from(document.querySelectorAll("details.case"));
  const groups = Array.from(document.querySelectorAll("section.skill"));
  const filters = Array.from(document.querySelectorAll("button[data-filter]"));
  let only = "";

  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const item of cases) {
      const states = item.dataset.state.split(" ");
      const match = (!only || states.includes(only)) && words.every((word) => item.dataset.text.includes(word));
      item.hidden = !match;
      shown += match;
    }
    for (const group of groups) {
      group.hidden = !group.querySelector("details.case:not([hidden])");
    }
    none.hidden = shown > 0;
  };
  const choose = (state) => {
    only = only === state ? "" : state;
    for (const button of filters) {
      button.setAttribute("aria-pressed", String(button.dataset.filter === only));
    }
    show();
  };
  const step = (by) => {
    const visible = cases.filter((item) => !item.hidden).map((item) => item.querySelector("summary"));
    if (!visible.length) return;
    const at = visible.indexOf(document.activeElement);
    const next = at < 0 ? (by > 0 ? 0 : visible.length - 1) : Math.min(visible.length - 1, Math.max(0, at + by));
    visible[next].focus();
  };

  search.addEventListener("input", show);
  for (const button of filters) {
    button.addEventListener("click", () => choose(button.dataset.filter));
  }
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === search) {
      if (event.key === "Escape") {
        event.preventDefault(); // the search stays, so that j and k step through what it found
        search.blur();
      }
      return;
    }
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "f") choose("failed");
  });
  tools.hidden = false;
})();
