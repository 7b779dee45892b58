// What makes pages more comfortable; each works without.
"use strict";

// Exact times by the browser's clock and in its words.
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

// A click that is not meant for this page: an attacker may have opened it in a window below a button of their own, so that
// the second click of a double click falls on this page. It is ignored within a second after the page came to the front.
for (const form of document.querySelectorAll("form[data-patient]")) {
  let front = performance.now();
  const restart = () => { front = performance.now(); };
  for (const event of ["focus", "pageshow"]) addEventListener(event, restart);
  document.addEventListener("visibilitychange", restart);
  form.addEventListener("click", (event) => {
    if (performance.now() - front < 1000) event.preventDefault();
  }, true);
}

// Sections that change all the time are looked at again while somebody wants that, for ten minutes at most: a browser that
// nobody looks at must not keep its session alive.
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

// Shows an error beside the field of this form that it is about, and says whether there is one.
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

// Passkeys, which browsers speak of to script only. The form is sent with what the browser says to what the authority asks.
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
        const text = alert?.textContent ?? "The authority does not answer as it should.";
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
      wrong.textContent = error.name === "NotAllowedError" ? "The browser used no passkey." : error.message;
      wrong.hidden = false;
    }
  });
}
