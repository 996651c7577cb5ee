"use strict";
// Fetches the page again and replaces the content. The content stays while a table or a link has
// the focus, or while text is selected. Unfolded parts and chosen axes keep their state.
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
  const busy = main.querySelector(":scope :focus:not(input)") || !getSelection().isCollapsed;
  if (!paused && !busy && !document.hidden) {
    try {
      const reply = await fetch(location.pathname, { cache: "no-store" });
      const text = await reply.text();
      const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("content");
      if (reply.ok && fresh) {
        const open = [...main.querySelectorAll("details")].map((each) => each.open);
        fresh.querySelectorAll("details").forEach((each, at) => { each.open = Boolean(open[at]); });
        for (const each of main.querySelectorAll("input:checked")) {
          const same = fresh.querySelector(`#${each.id}`);
          if (same) same.checked = true;
        }
        const focused = document.activeElement.id;
        main.replaceChildren(...fresh.childNodes);
        document.getElementById(focused)?.focus({ preventScroll: true });
      }
    } catch (error) {
      status.textContent = "The report is no longer served: this is its last state.";
    }
  }
  setTimeout(update, every);
}
setTimeout(update, every);
