"""Data that a run never saw or cannot hold, through the commands, in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

Run = Callable[..., tuple[int, str, str]]

SMALL = ("--hidden=4", "--latents=2", "--categories=2", "--device=cpu", "--epochs=1")


def bits(num: int, columns: int) -> str:
    table = np.random.default_rng(0).integers(0, 2, (num, columns))
    return "".join(",".join(map(str, row)) + "\n" for row in table)


def test_names_with_commas_come_back(pdvae: Run) -> None:
    header = '"income, yearly","a ""b""",c\n'
    Path("x.csv").write_text(header + bits(60, 3))
    assert pdvae("fit", "run", "--data=x.csv", *SMALL)[0] == 0
    assert pdvae("sample", "run", "-n7", "--draws", "-os.csv")[0] == 0
    assert Path("s.csv").read_text().startswith(header)
    assert pdvae("score", "run", "--data=s.csv", "-oscores.csv")[0] == 0
    assert len(Path("scores.csv").read_text().splitlines()) == 8
    status, out, _ = pdvae("data", "x.csv", "--columns", 'c, "income, yearly"')
    assert status == 0
    assert "columns               c 0 to 1, income, yearly 0 to 1" in out


def test_columns_that_share_a_name_are_refused_before_they_are_trained_on(pdvae: Run) -> None:
    Path("x.csv").write_text("a,a,c\n" + bits(60, 3))
    assert "note: more than one column is called a" in pdvae("data", "x.csv")[1]
    for options in ([], ["--columns=1,2"]):
        status, _, err = pdvae("fit", "run", "--data=x.csv", *options, *SMALL)
        assert (status, err.count("\n")) == (2, 1)
        assert "names of their own in x.csv; got 'a' more than once. Rename one" in err
        assert not Path("run").exists()
    assert pdvae("fit", "run", "--data=x.csv", "--columns=c", *SMALL)[0] == 0
    assert pdvae("score", "run", "--data=x.csv")[0] == 0


def test_a_header_of_numbers(pdvae: Run) -> None:
    Path("x.csv").write_text("2001,2002,2003\n" + bits(60, 3))
    Path("more.csv").write_text("2003,2002,2001\n" + bits(9, 3))
    Path("less.csv").write_text("2003,2002,x\n" + bits(9, 3))
    assert "data                  61 rows of 3" in pdvae("data", "x.csv")[1]
    status, out, err = pdvae("fit", "run", "--data=x.csv", "--header", *SMALL)
    assert (status, err) == (0, "")
    assert "data: 60 rows of 3" in out
    status, out, _ = pdvae("encode", "run", "--data=more.csv", "-oc.csv")
    assert (status, "of 9 rows" in out) == (0, True)
    status, _, err = pdvae("encode", "run", "--data=less.csv", "-od.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "a column of less.csv: 2003, 2002, x; got '2001'" in err
