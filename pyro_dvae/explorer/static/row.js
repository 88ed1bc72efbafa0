// A form of one cell per column. Names come as data, and become texts of the page, never HTML.
const form = element.querySelector(".row-form");
const controls = props.columns.map((name, i) => {
  const label = document.createElement("label");
  const levels = props.levels[i].length ? props.levels[i] : null;
  const control = document.createElement(levels ? "select" : "input");
  if (levels) {
    for (const level of ["", ...levels]) control.append(new Option(level, level));
  } else {
    control.inputMode = "decimal";
    control.maxLength = 40;
    control.autocomplete = "off";
  }
  const text = document.createElement("span");
  text.textContent = name;
  label.append(text, control);
  form.append(label);
  control.addEventListener("change", () => {
    shown = JSON.stringify(controls.map((each) => each.value));
    props.value = controls.map((each) => each.value);
    trigger("input");
  });
  return control;
});
let shown = "";

function fill() {
  if (!Array.isArray(props.value) || JSON.stringify(props.value) === shown) return;
  props.value.forEach((cell, i) => {
    if (i < controls.length) controls[i].value = String(cell);
  });
}

watch("value", fill);
fill();
