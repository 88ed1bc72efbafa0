// A canvas of the model's own pixels: what is seen is what is encoded. No file leaves the browser.
const canvas = element.querySelector("canvas");
const pen = element.querySelector("[name=pen]");
const colour = element.querySelector("[name=colour]");
const [width, height] = [canvas.width, canvas.height];
const planes = Number(canvas.dataset.planes);
const context = canvas.getContext("2d", { willReadFrequently: true });
context.lineCap = context.lineJoin = "round";
let last = null;
let shown = "";

function digits() {
  const pixels = context.getImageData(0, 0, width, height).data;
  let text = "";
  for (let plane = 0; plane < planes; plane++) {
    for (let i = plane; i < pixels.length; i += 4) {
      text += pixels[i].toString(16).padStart(2, "0");
    }
  }
  return text;
}

function draw(text) {
  const size = width * height;
  if (typeof text !== "string" || text.length !== 2 * planes * size) return;
  const image = context.createImageData(width, height);
  for (let i = 0; i < size; i++) {
    for (let channel = 0; channel < 3; channel++) {
      const at = 2 * (i + (planes === 3 ? channel * size : 0));
      image.data[4 * i + channel] = parseInt(text.slice(at, at + 2), 16);
    }
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  shown = text;
}

function clear() {
  context.fillStyle = "black";
  context.fillRect(0, 0, width, height);
}

function send() {
  shown = digits();
  props.value = shown;
  trigger("input");
}

function place(event) {
  const box = canvas.getBoundingClientRect();
  return [
    ((event.clientX - box.left) / box.width) * width,
    ((event.clientY - box.top) / box.height) * height,
  ];
}

function line(event) {
  const [x, y] = place(event);
  context.strokeStyle = colour ? colour.value : "white";
  context.lineWidth = Number(pen.value);
  context.beginPath();
  context.moveTo(...(last || [x, y]));
  context.lineTo(x + 0.01, y);
  context.stroke();
  last = [x, y];
}

canvas.addEventListener("pointerdown", (event) => {
  event.preventDefault();
  canvas.setPointerCapture(event.pointerId);
  last = null;
  line(event);
});
canvas.addEventListener("pointermove", (event) => {
  if (last) line(event);
});
for (const end of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(end, () => {
    if (last) send();
    last = null;
  });
}
element.querySelector("[name=clear]").addEventListener("click", () => {
  clear();
  send();
});
element.querySelector("[name=invert]").addEventListener("click", () => {
  const image = context.getImageData(0, 0, width, height);
  for (let i = 0; i < image.data.length; i++) {
    if (i % 4 !== 3) image.data[i] = 255 - image.data[i];
  }
  context.putImageData(image, 0, 0);
  send();
});
element.querySelector("[type=file]").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  event.target.value = "";
  if (!file) return;
  const told = element.querySelector("[role=status]");
  try {
    const image = await createImageBitmap(file);
    const scale = Math.min(width / image.width, height / image.height);
    const [w, h] = [image.width * scale, image.height * scale];
    clear();
    context.imageSmoothingQuality = "high";
    context.drawImage(image, (width - w) / 2, (height - h) / 2, w, h);
    image.close();
    told.textContent = "";
    send();
  } catch {
    told.textContent = "Expected an image that the browser can open. Choose another file.";
  }
});
watch("value", () => {
  if (props.value !== shown) draw(props.value);
});
clear();
draw(props.value);
