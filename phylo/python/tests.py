"""What the wheel promises: values, arrays, exceptions, other threads, Ctrl-C. Run by scripts/check-python."""

import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import pytest

import sidecore_phylo as phylo

MODEL = "GTR{1/2/1/1/2/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}"


@pytest.fixture(scope="module")
def data():
    return phylo.simulate(MODEL, 400, taxa=8, seed=3)


def test_arrays_go_in_and_out(data):
    alignment, _ = data
    characters = alignment.to_numpy()
    assert characters.shape == (len(alignment), alignment.sites) == (8, 400)
    assert characters.dtype == np.uint8 and characters.flags.writeable
    for given in (characters, characters.view("S1"), np.asfortranarray(characters)):
        again = phylo.Alignment(alignment.names, given)
        assert again.to_phylip() == alignment.to_phylip()
    assert phylo.Alignment.parse(alignment.to_phylip()).names == alignment.names


def test_site_log_likelihoods_add_up(data):
    alignment, truth = data
    for opt in ("none", "branches", "all"):
        one = phylo.evaluate(alignment, truth, MODEL if opt == "none" else "GTR+G", opt=opt)
        sites = one.site_log_likelihoods
        assert sites.shape == (400,) and sites.dtype == np.float64
        assert sites.sum() == pytest.approx(one.log_likelihood, abs=1e-6)
    again = phylo.evaluate(alignment, one.tree, one.models[0], opt="none")
    assert again.log_likelihood == pytest.approx(one.log_likelihood, abs=0.01)


def test_models_are_ranked(data):
    alignment, truth = data
    fits = phylo.models(alignment, tree=truth, free_rates_max=0)
    scores = [fit.bic for fit in fits]
    assert scores == sorted(scores) and len({fit.name for fit in fits}) == len(fits) > 3
    best = fits[0]
    # What was chosen is a model for the other calls, of the same likelihood.
    again = phylo.evaluate(alignment, truth, best.name)
    assert again.log_likelihood == pytest.approx(best.log_likelihood, abs=0.05)
    by_aic = phylo.models(alignment, tree=truth, free_rates_max=0, criterion="aic")
    assert by_aic[0].aic == min(fit.aic for fit in by_aic) and by_aic[0].parameters >= best.parameters
    for wrong in ({"data": "codon"}, {"criterion": "dic"}, {"free_rates_max": 11}, {"tree": "(a,b,c);"}):
        with pytest.raises(phylo.PhyloError):
            phylo.models(alignment, **wrong)


def test_pictures(data, tmp_path):
    _, truth = data
    names = [f"t{k}" for k in range(1, 9)]
    for form in ("rectangular", "circular"):
        picture = phylo.draw(truth, form=form, theme="dark", root="mad")
        assert picture.svg.startswith("<svg") and all(f">{name}<" in picture.svg for name in names)
        assert picture._repr_svg_() == picture.svg
    picture.save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == picture.svg
    assert phylo.draw(truth, root=["t1"]).svg != phylo.draw(truth, root="midpoint").svg
    with pytest.raises(OSError):
        picture.save(tmp_path / "none" / "a.svg")
    for wrong in ({"form": "oval"}, {"theme": "pink"}, {"root": "t1"}, {"root": ["nobody"]}):
        with pytest.raises(phylo.PhyloError):
            phylo.draw(truth, **wrong)


def test_one_seed_one_result(data):
    alignment, _ = data
    shown = []
    results = [
        phylo.search(
            alignment, "GTR+G", starts=2, bootstraps=3, seed=5, engines=engines, progress=lambda *now: shown.append(now)
        )
        for engines in (1, 2)
    ]
    assert results[0].tree == results[1].tree
    assert results[0].bootstraps == results[1].bootstraps
    assert len(results[0].bootstraps) == 3 and results[0].support is not None
    assert results[0].log_likelihood == max(results[0].log_likelihoods)
    assert all(needed == 5 for _, needed in shown)


def test_the_program_finds_the_same(data, program):
    alignment, _ = data
    with tempfile.TemporaryDirectory() as folder:
        msa = pathlib.Path(folder, "a.phy")
        msa.write_text(alignment.to_phylip())
        command = [program, "phylo", "search", "--msa", msa, "--model", "GTR+G", "--starts", "2", "--seed", "5"]
        subprocess.run([*command, "--prefix", f"{folder}/a", "--json"], check=True, capture_output=True)
        tree = pathlib.Path(folder, "a.bestTree").read_text().strip()
    assert phylo.search(alignment, "GTR+G", starts=2, seed=5).tree == tree


def test_partitions(data):
    alignment, truth = data
    lines = "GTR+G, one = 1-200\nJC, two = 201-400\n"
    fitted = phylo.evaluate(alignment, truth, lines)
    assert len(fitted.models) == 2 and fitted.models[1].startswith("JC")


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda a, t: phylo.evaluate(a, t, "GTX"), phylo.PhyloError, "GTX"),
        (lambda a, t: phylo.evaluate(a, "(a,b,c);", "GTR"), phylo.PhyloError, "tree"),
        (lambda a, t: phylo.evaluate(a, t, "GTR", opt="some"), phylo.PhyloError, "some"),
        (lambda a, t: phylo.search(a, "GTR", starts=0), phylo.PhyloError, "nothing"),
        (lambda a, t: phylo.search(a, "GTR", start_trees=[t], starts=2), phylo.PhyloError, "1 start tree"),
        (lambda a, t: phylo.search(a, "GTR", policy="best"), phylo.PhyloError, "best"),
        (lambda a, t: phylo.Alignment.read("/nowhere/a.phy"), OSError, "/nowhere/a.phy"),
        (lambda a, t: phylo.Alignment(a.names[1:], a.to_numpy()), phylo.PhyloError, "7 names for 8"),
        (lambda a, t: phylo.Alignment(a.names, a.to_numpy()[0]), TypeError, "two dimensions"),
        (lambda a, t: phylo.Alignment(a.names, a.to_numpy() * 1.0), TypeError, "float64"),
        (lambda a, t: phylo.simulate("JC", 10), phylo.PhyloError, "taxa"),
    ],
)
def test_what_is_wrong_is_an_exception(data, call, error, text):
    with pytest.raises(error, match=text):
        call(*data)


def test_an_error_in_progress_ends_the_search(data):
    def fail(done, needed):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        phylo.search(data[0], "GTR+G", starts=500, progress=fail)


def test_other_threads_run_meanwhile(data):
    counted = [0]
    over = threading.Event()

    def count():
        while not over.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    phylo.search(data[0], "GTR+G", starts=8)
    after = counted[0]
    over.set()
    thread.join()
    # With the lock held it could not have counted once.
    assert after > before + 5


def test_interrupt():
    """Ctrl-C ends a search of hours at once, with KeyboardInterrupt."""
    script = (
        "import sidecore_phylo as p; a, t = p.simulate('JC', 3000, taxa=150, seed=1)\n"
        "try:\n  print('begin', flush=True); p.search(a, 'GTR+G', starts=10000)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begin\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"


def test_types_are_complete():
    """Every public name is in the stub."""
    stub = pathlib.Path(phylo.__file__).with_name("_native.pyi").read_text()
    assert pathlib.Path(phylo.__file__).with_name("py.typed").exists()
    for name in phylo.__all__:
        assert name in stub
        public = [one for one in dir(getattr(phylo, name)) if not one.startswith("_")]
        if isinstance(getattr(phylo, name), type) and not issubclass(getattr(phylo, name), Exception):
            assert all(f"def {one}(" in stub for one in public), (name, public)


def test_what_changes_the_data_is_a_warning(data):
    alignment, truth = data
    rows = dict(line.split() for line in alignment.to_phylip().splitlines()[1:])
    head = f"#NEXUS begin taxa; dimensions ntax=8; taxlabels {' '.join(rows)}; end; begin characters; dimensions nchar=400; "
    nolabels = phylo.Alignment.parse(head + "format datatype=dna nolabels; matrix " + "\n".join(rows.values()) + "; end;")
    assert nolabels.to_phylip() == alignment.to_phylip()
    matrix = "\n".join(f"{name} {row}" for name, row in rows.items())
    exset = phylo.Alignment.parse(head + f"format datatype=dna; matrix {matrix}; end; begin assumptions; exset * x = 1-9; end;")
    with pytest.warns(UserWarning, match="not followed, all that the matrix has counts alike: EXSET"):
        phylo.evaluate(exset, truth, MODEL, opt="none")
    bare = re.sub(r":[0-9.eE-]+", "", truth)
    with pytest.warns(UserWarning, match="branches without a length: 13 of 13, 0.1 assumed"):
        phylo.evaluate(alignment, bare, MODEL, opt="none")
    stops = phylo.Alignment.parse(">a\nMKV*\n>b\nMKVL\n>c\nMKVL\n>d\nMRVL\n")
    with pytest.warns(UserWarning, match="read as unknown: `\\*`"):
        phylo.evaluate(stops, "(a,b,(c,d));", "LG")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        phylo.evaluate(alignment, truth, MODEL, opt="none")
        phylo.evaluate(alignment, bare, MODEL, opt="branches")
        # As an error it ends the call.
        with pytest.raises(UserWarning):
            phylo.search(stops, "LG", starts=1)


def test_files_without_end_are_refused(data):
    alignment, truth = data
    with pytest.raises(phylo.PhyloError, match="is a device"):
        phylo.Alignment.read("/dev/zero")
    with pytest.raises(phylo.PhyloError, match="no regular file"):
        phylo.evaluate(alignment, truth, "GTR{/dev/zero}")
    with pytest.raises(phylo.PhyloError, match="number 1 of the file") as error:
        phylo.evaluate(alignment, truth, "GTR{/etc/passwd}")
    assert "root" not in str(error.value)
