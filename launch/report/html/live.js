"use strict";
// Fetches the page anew and puts its content in place of the old one. Whoever reads a table by
// keyboard, or has marked text, is left alone; what was unfolded stays so.
const every = {{ (live_s * 1000)|int }};
const status = document.getElementById("live");
const button = document.getElementById("pause");
let paused = false;
button.addEventListener("click", () => {
  paused = !paused;
  button.textContent = paused ? "Go on with updates" : "Stop updates";
  status.textContent = paused ? "Updates are stopped." : "Shows the run as it goes on.";
});
async function update() {
  const main = document.getElementById("content");
  const busy = main.contains(document.activeElement) || !getSelection().isCollapsed;
  if (!paused && !busy && !document.hidden) {
    try {
      const answer = await fetch(location.pathname, { cache: "no-store" });
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("content");
      if (answer.ok && fresh) {
        const open = [...main.querySelectorAll("details")].map((each) => each.open);
        fresh.querySelectorAll("details").forEach((each, at) => { each.open = Boolean(open[at]); });
        main.replaceChildren(...fresh.childNodes);
      }
    } catch (error) {
      status.textContent = "The report is no longer served: this is its last state.";
    }
  }
  setTimeout(update, every);
}
setTimeout(update, every);
