// What makes pages more comfortable; each works without.
"use strict";

// Times by the browser's clock and in its words.
for (const time of document.querySelectorAll("time[datetime]")) {
  const at = new Date(time.dateTime);
  time.title = time.textContent;
  time.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}
