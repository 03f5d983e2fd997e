"use strict";
// The episodes of a report. Every text of a model or an environment goes in as text, never as markup.
(async () => {
  const PAGE = 50; // episodes that are added to the list at once
  const SIGNS = { success: "✓", failure: "✕", budget: "◔", context: "▤", timeout: "⧖", env_error: "⚠" };
  const byId = (id) => document.getElementById(id);
  const form = byId("filters"), list = byId("list"), more = byId("more"), count = byId("count");

  function bytesOf(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const letters = atob(text), bytes = new Uint8Array(letters.length);
    for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
    return bytes;
  }

  async function unpacked(text) {
    const bytes = bytesOf(text);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  // Control characters are shown as their pictures, halves of a character as the replacement sign.
  function shown(text) {
    return text
      .replace(/[\u0000-\u0008\u000b-\u001f]/g, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)))
      .replace(/\u007f/g, "\u2421")
      .replace(/[\ud800-\udfff]/gu, "\ufffd");
  }

  function make(tag, name, text) {
    const one = document.createElement(tag);
    if (name) one.className = name;
    if (text !== undefined) one.textContent = text;
    return one;
  }

  let data;
  try {
    data = await unpacked(byId("data").textContent);
  } catch (error) {
    count.textContent = "This browser cannot unpack the episodes (it has no DecompressionStream).";
    return;
  }
  const texts = data.texts;
  const names = ["run", "step", "evaluation", "task", "budget", "reason", "seed", "final", "error", "distance", "turns"];
  const episodes = data.episodes.map((row) => Object.fromEntries(names.map((name, at) => [name, row[at]])));
  const from = (one) => (one.step === null ? texts[one.evaluation] : "training");

  function options(name, values, any) {
    const select = form.elements[name];
    select.append(new Option(any, ""));
    for (const value of values) select.append(new Option(shown(String(value)), value));
  }
  const unique = (values) => [...new Set(values)];
  options("run", data.runs.map((_, at) => at), "all");
  data.runs.forEach((name, at) => (form.elements.run.options[at + 1].textContent = shown(name)));
  options("from", unique(episodes.map(from)), "training and evaluation");
  options("budget", unique(episodes.map((one) => one.budget)).sort((a, b) => a - b), "any");
  options("reason", unique(episodes.map((one) => texts[one.reason])).sort(), "anything");
  form.querySelector(".for-run").hidden = data.runs.length < 2;
  form.hidden = false;

  let found = [];
  function search() {
    const wanted = Object.fromEntries(new FormData(form));
    const task = wanted.task.trim().toLowerCase();
    found = episodes.filter(
      (one) =>
        (wanted.run === "" || one.run === Number(wanted.run)) &&
        (wanted.from === "" || from(one) === wanted.from) &&
        (wanted.step === "" || one.step === Number(wanted.step)) &&
        (wanted.budget === "" || one.budget === Number(wanted.budget)) &&
        (wanted.reason === "" || texts[one.reason] === wanted.reason) &&
        (task === "" || texts[one.task].toLowerCase().includes(task)),
    );
    list.replaceChildren();
    const solved = found.filter((one) => texts[one.reason] === "success").length;
    count.textContent = `${found.length.toLocaleString("en")} of ${episodes.length.toLocaleString("en")} episodes, ` +
      `${solved.toLocaleString("en")} of them solved`;
    extend();
  }

  function extend() {
    const at = list.children.length;
    list.append(...found.slice(at, at + PAGE).map(row));
    const left = found.length - list.children.length;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(PAGE, left)} more of ${left.toLocaleString("en")}`;
  }

  function row(one) {
    const item = make("li"), details = make("details"), summary = make("summary");
    const reason = texts[one.reason];
    const task = make("span", "task", shown(texts[one.task]));
    task.dir = "auto";
    const run = data.runs.length > 1 ? `${shown(data.runs[one.run])}, ` : "";
    summary.append(
      task,
      make("span", `reason ${reason === "success" ? "good" : "bad"}`, `${SIGNS[reason] || "•"} ${shown(reason)}`),
      make("span", "soft", `budget ${one.budget}`),
      make("span", "soft", `${one.turns.length} turn${one.turns.length === 1 ? "" : "s"}`),
      make("span", "soft where", run + (one.step === null ? shown(texts[one.evaluation]) : `training step ${one.step}`)),
    );
    details.append(summary);
    details.addEventListener("toggle", () => details.children.length === 1 && details.append(play(one)));
    item.append(details);
    return item;
  }

  function play(one) {
    const box = make("div", "play"), turns = make("ol", "turns");
    const start = one.distance === null ? "" : ` · ${one.distance} turns to the goal at the start`;
    box.append(make("p", "soft", `seed ${one.seed}${start}`));
    let before = one.distance;
    one.turns.forEach((turn, at) => {
      turns.append(turned(turn, at, one.budget, before));
      before = turn[6];
    });
    box.append(turns);
    if (texts[one.final]) box.append(said(texts[one.final], "The environment's last answer"));
    if (texts[one.error]) box.append(make("p", "bad", `error: ${shown(texts[one.error])}`));
    return box;
  }

  function said(text, label) {
    const one = make("div", "said", shown(text));
    one.dir = "auto";
    if (text.length > 1000) one.tabIndex = 0; // it scrolls, also by keyboard
    one.setAttribute("role", "group");
    one.setAttribute("aria-label", label);
    return one;
  }

  function turned([observation, action, valid, reward, logprob, tokens, after], at, budget, before) {
    const item = make("li"), act = make("div", valid ? "act" : "act refused");
    const code = make("code", "", shown(texts[action]) || "(no action)");
    code.dir = "auto";
    const facts = [`turn ${at + 1}`, `${budget - at - 1} left`];
    if (!valid) facts.push("✕ not accepted");
    if (after !== null && before !== null) {
      const word = after < before ? "nearer" : after > before ? "farther" : "no nearer";
      facts.push(`${before} → ${after} turns to the goal (${word})`);
    }
    if (logprob !== null) facts.push(`log-probability ${logprob.toFixed(2)}` + (tokens ? ` (${tokens} tokens)` : ""));
    if (reward) facts.push(`reward ${reward}`);
    act.append(code, make("p", "", facts.join(" · ")));
    item.append(said(texts[observation], `Observation of turn ${at + 1}`), act);
    return item;
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(search));
  form.addEventListener("input", search);
  more.addEventListener("click", () => {
    const at = list.children.length;
    extend();
    list.children[at]?.querySelector("summary").focus();
  });
  search();
  document.documentElement.dataset.ready = "yes";
})();
