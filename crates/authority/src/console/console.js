// What makes pages more comfortable; each works without.
"use strict";

// Times by the browser's clock and in its words.
function localize(within) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    time.title = time.textContent;
    time.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  }
}
localize(document);

// Sections that change all the time are looked at again while somebody wants that, for ten minutes at most: a browser that
// nobody looks at must not keep its session alive.
for (const section of document.querySelectorAll("[data-live]")) {
  const [label, wanted] = [document.createElement("label"), document.createElement("input")];
  label.className = "live";
  wanted.type = "checkbox";
  label.append(wanted, " Look again every 5 seconds");
  section.before(label);
  let left = 0;
  wanted.addEventListener("change", () => { left = 120; });
  setInterval(async () => {
    if (!wanted.checked || document.hidden || section.contains(document.activeElement)) return;
    const answer = left-- > 0 ? await fetch(location.href) : null;
    const page = answer?.ok && !answer.redirected ? await answer.text() : "";
    const fresh = new DOMParser().parseFromString(page, "text/html").querySelector("[data-live]");
    if (!fresh) { wanted.checked = false; return; }
    const open = [...section.querySelectorAll("details")].map((details) => details.open);
    [...fresh.querySelectorAll("details")].forEach((details, nth) => { details.open = open[nth]; });
    section.replaceChildren(...fresh.childNodes);
    localize(section);
  }, 5000);
}

// A text may come from a file.
for (const text of document.querySelectorAll("textarea[data-file]")) {
  const [button, file] = [document.createElement("button"), document.createElement("input")];
  button.type = "button";
  button.textContent = text.dataset.file;
  file.type = "file";
  button.addEventListener("click", () => file.click());
  text.before(button);
  file.addEventListener("change", async () => {
    if (file.files.length > 0) text.value = await file.files[0].text();
  });
}
