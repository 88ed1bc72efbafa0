"use strict";
for (const box of document.querySelectorAll(".explorer")) {
  const form = box.querySelector("form");
  const data = JSON.parse(box.querySelector("script").textContent);
  const sprite = box.querySelector("img.sprite");
  const canvas = box.querySelector("canvas");
  const cells = box.querySelectorAll("td.decoded");
  const state = box.querySelector(".state");
  const controls = Array.from({length: data.latents}, (_, d) => form.elements[`${box.id}-${d}`]);
  const show = () => {
    const code = controls.map((control) => Number(control.value));
    const index = code.reduce((sum, k) => sum * data.categories + k, 0);
    if (canvas) {
      const [w, h] = [data.width, data.height];
      const context = canvas.getContext("2d");
      context.drawImage(sprite, (index % data.across) * w, Math.floor(index / data.across) * h, w, h, 0, 0, w, h);
      canvas.setAttribute("aria-label", `The decoded image of the code ${code.join(" ")}`);
    }
    cells.forEach((cell, i) => { cell.textContent = data.rows[index][i]; });
    const used = data.counts ? `; ${data.counts[index]} of ${data.total} ${data.datum}s have this code` : "";
    state.textContent = `z = ${code.join(" ")}${used}`;
  };
  form.addEventListener("change", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of form.querySelectorAll("button[data-code]")) {
    button.addEventListener("click", () => {
      button.dataset.code.split(" ").forEach((k, d) => { controls[d].value = k; });
      show();
    });
  }
  form.hidden = false;
  if (sprite && !sprite.complete) sprite.addEventListener("load", show); else show();
}
