"""How long commands take to start, and which imports take most of that time.

Each command runs in a process of its own, on the bundled sample; the commands take turns, and the
median over the rounds is printed. `fit` is timed from the start of the process to the end of its
first training step. The other commands run to their end. The ratio is to `import pyro`, torch
included, because no command that computes can do without it.

Example: python examples/benchmarks/start_up.py --rounds 9
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter

_MAIN = "from pdvae_cli.main import main\nmain({})"
_FIRST_STEP = f"""import os
from pyro_dvae.training import Progress
Progress.step = lambda *_: os._exit(0)
{_MAIN}"""
_REFUSED = """from pdvae_cli.main import main
try: main({})
except SystemExit as stop: assert stop.code == 2"""
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)")
_APART = ("torch._dynamo", "torch._inductor", "torch.fx", "pyro_dvae", "pdvae_cli")
"""Parts of packages whose imports are counted apart from the rest of the package."""


def commands(folder: str) -> dict[str, str]:
    """Name -> the Python code that is timed; `folder` holds a run."""
    run = f"{folder}/run"
    fit = ["fit", "--data=mnist-sample", "--epochs=1", "--device=cpu"]
    return {
        "import torch": "import torch",
        "import pyro": "import pyro",
        "import pyro_dvae": "import pyro_dvae",
        "pdvae --help": _MAIN.format(["--help"]),
        "pdvae fit --help": _MAIN.format(["fit", "--help"]),
        "pdvae fit --hidden a,b": _REFUSED.format([*fit, "--hidden=a,b"]),
        "pdvae fit, a step": _FIRST_STEP.format(fit),
        "pdvae info": _MAIN.format(["info", run]),
        "pdvae encode": _MAIN.format(["encode", run, f"-o{folder}/codes.csv", "--force"]),
        "pdvae sample -o .csv": _MAIN.format(["sample", run, f"-o{folder}/rows.csv", "--force"]),
        "pdvae sample -o .png": _MAIN.format(["sample", run, f"-o{folder}/grid.png", "--force"]),
        "pdvae evaluate": _MAIN.format(["evaluate", run]),
    }


def timed(code: str, folder: str) -> float:
    """Run code in a process of its own, and return the seconds from its start to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, check=True)
    return time.perf_counter() - start


def heaviest(code: str, folder: str, num: int = 5) -> str:
    """The packages whose modules take longest to import, not counting what they import in turn."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    spent: Counter[str] = Counter()
    for microseconds, module in _LINE.findall(told):
        part = next((name for name in _APART if f"{module}.".startswith(f"{name}.")), None)
        spent[part or module.partition(".")[0]] += int(microseconds)
    return ", ".join(f"{name} {time / 1e6:.2f}" for name, time in spent.most_common(num))


def main() -> None:
    """Make a run, time the commands in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        fit = ["fit", f"{folder}/run", "--data=mnist-sample", "--epochs=1", "--hidden=64"]
        command = [sys.executable, "-c", _MAIN.format(fit)]
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
        codes = commands(folder)
        seconds: dict[str, list[float]] = {name: [] for name in codes}
        for _ in range(rounds):
            for name, code in codes.items():
                seconds[name].append(timed(code, folder))
        print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, {rounds} rounds; seconds")
        print(f"{'':24}{'median':>7}{'least':>7}{'most':>7}{'ratio':>7}  heaviest imports")
        pyro = statistics.median(seconds["import pyro"])
        for name, code in codes.items():
            median, least, most = (
                statistics.median(seconds[name]),
                min(seconds[name]),
                max(seconds[name]),
            )
            ratio = median / pyro
            print(
                f"{name:24}{median:7.2f}{least:7.2f}{most:7.2f}{ratio:7.2f}  "
                f"{heaviest(code, folder)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
