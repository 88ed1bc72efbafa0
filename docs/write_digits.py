"""Write 2,000 digits of the bundled MNIST sample as files, such as digits/3/0007.png."""

from pathlib import Path

from PIL import Image

from pyro_dvae import load_images

images = load_images("mnist-sample")
for number in range(2000):
    folder = Path("digits", str(int(images.train_labels[number])))
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(images.train[number].numpy()).save(folder / f"{number:04}.png")
