// Conveniences. Every page works without this script.
"use strict";

// Shows times in the browser's time zone and language. An element with `data-exact` shows the local time as its text;
// the others show it as a tooltip.
function localize(within) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const local = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    if ("exact" in time.dataset) {
      time.title = time.textContent;
      time.textContent = local;
    } else {
      time.title = local;
    }
  }
}
localize(document);

// Ignores clicks within a second after the page came to the front. Otherwise an attacker could open this page under a
// button of their own page, so that the second click of a double click would confirm the form.
for (const form of document.querySelectorAll("form[data-patient]")) {
  let front = performance.now();
  const restart = () => { front = performance.now(); };
  for (const event of ["focus", "pageshow"]) addEventListener(event, restart);
  document.addEventListener("visibilitychange", restart);
  form.addEventListener("click", (event) => {
    if (performance.now() - front < 1000) event.preventDefault();
  }, true);
}

// Refreshes live sections every five seconds while the user has this switched on, for at most ten minutes: an unattended
// browser must not keep its session alive.
for (const section of document.querySelectorAll("[data-live]")) {
  const [label, wanted] = [document.createElement("label"), document.createElement("input")];
  label.className = "live";
  wanted.type = "checkbox";
  label.append(wanted, " Refresh every 5 seconds");
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

// Sends the network's switch a new key for this device while the page is open, as often as the page says (in seconds).
for (const device of document.querySelectorAll("[data-renew]")) {
  const renew = async () => {
    const answer = await fetch(device.dataset.at).catch(() => null);
    // The device's session has ended, and the authority leads to the login; or the device has moved, and the page says so.
    const moved = answer?.status === 409 && (await answer.text()) !== "";
    if (answer?.redirected || answer?.status === 401 || moved) location.reload();
  };
  setInterval(renew, 1000 * device.dataset.renew);
}

// Adds a button that fills a text field from a file.
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

// Shows an error next to the field of the form that it concerns. Returns whether the form has such a field.
function mark(form, problem, text) {
  const field = problem && form.querySelector(`[data-problems~="${problem}"]`);
  if (!field) return false;
  const fault = document.createElement("p");
  fault.className = "fault";
  fault.id = `${field.id}-fault`;
  fault.textContent = text;
  field.before(fault);
  field.setAttribute("aria-describedby", fault.id);
  field.setAttribute("aria-invalid", "true");
  field.focus();
  return true;
}

// Passkeys are available to scripts only. The script requests a challenge from the authority, has the browser answer it,
// and submits the form with that answer.
for (const form of document.querySelectorAll("form[data-passkey]")) {
  if (!window.PublicKeyCredential?.parseRequestOptionsFromJSON) continue;
  form.hidden = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wrong = form.querySelector("[role=alert]");
    const creates = form.dataset.passkey === "create";
    wrong.hidden = true;
    for (const fault of form.querySelectorAll(".fault")) fault.remove();
    for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    try {
      const asked = await fetch(form.dataset.begin, { method: "POST", body: new URLSearchParams(new FormData(form)) });
      if (!asked.ok) {
        const page = new DOMParser().parseFromString(await asked.text(), "text/html");
        const alert = page.querySelector("[role=alert]");
        const text = alert?.textContent ?? "The authority does not answer correctly: try again later.";
        if (mark(form, alert?.dataset.problem, text)) return;
        throw new Error(text);
      }
      const options = await asked.json();
      const credential = creates
        ? await navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options) })
        : await navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options) });
      form.elements.answer.value = JSON.stringify(credential.toJSON());
      form.submit();
    } catch (error) {
      wrong.textContent = error.name === "NotAllowedError" ? "The browser did not use a passkey." : error.message;
      wrong.hidden = false;
    }
  });
}
