"""What the wheel promises: values, arrays, exceptions, other threads, Ctrl-C. Run by scripts/check-python."""

import io
import json
import math
import pathlib
import pickle
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
    for epsilon in (0, -1, math.nan, math.inf):
        with pytest.raises(phylo.PhyloError, match="epsilon"):
            phylo.evaluate(alignment, truth, MODEL, epsilon=epsilon)
    for wrong in ({"branch_mean": math.nan}, {"branch_mean": 0}, {"sites": 10**12}):
        with pytest.raises(phylo.PhyloError, match="branch_mean from"):
            phylo.simulate("JC", taxa=4, **{"sites": 10, **wrong})
    with pytest.raises(phylo.PhyloError, match="below 0"):
        phylo.simulate("JC", 10, tree="(a:1,b:-1,c:1);")


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


def test_objects_pickle(data):
    alignment, truth = data
    again = pickle.loads(pickle.dumps(alignment))
    assert again.names == alignment.names and again.to_phylip() == alignment.to_phylip()
    one = phylo.evaluate(alignment, truth, MODEL, opt="none", site_rates=True)
    other = pickle.loads(pickle.dumps(one))
    assert (other.log_likelihood, other.trees, other.models) == (one.log_likelihood, one.trees, one.models)
    assert (other.site_log_likelihoods == one.site_log_likelihoods).all()
    assert (other.site_rates == one.site_rates).all() and other.root_frequencies is None
    found = phylo.search(alignment, "JC", starts=1, bootstraps=2)
    other = pickle.loads(pickle.dumps(found))
    assert (other.tree, other.support, other.bootstraps) == (found.tree, found.support, found.bootstraps)
    assert other.to_newick() == found.support and other.models == found.models
    fit = phylo.models(alignment, tree=truth, free_rates_max=0)[0]
    other = pickle.loads(pickle.dumps(fit))
    assert (other.name, other.bic, other.aicc) == (fit.name, fit.bic, fit.aicc)
    picture = phylo.draw(truth)
    assert pickle.loads(pickle.dumps(picture)).svg == picture.svg
    counts = pickle.loads(pickle.dumps(phylo.Counts(COUNTS)))
    assert counts.names == ["one", "two", "three", "four"] and counts.sites == len(counts) + 12 == 16
    with pytest.raises(phylo.PhyloError, match="no search"):
        phylo.search(alignment, "JC", starts=0, bootstraps=2).to_newick()


def test_trees_of_other_libraries(data):
    _, truth = data

    class Written:
        """As ETE's."""

        def write(self):
            return truth

    class Printed:
        """As scikit-bio's, whose write() needs a file."""

        def write(self, into):
            raise AssertionError

        def __str__(self):
            return truth + "\n"

    class Named:
        """As DendroPy's."""

        def as_string(self, schema):
            assert schema == "newick"
            return "[&R] " + truth

    for given in (Written(), Printed(), Named()):
        assert phylo.compare(given, truth)["branch_score"] == pytest.approx(0, abs=1e-9)
        assert phylo.compare_all([truth, given])["rf_mean"] == 0
    for given in (5, None, object(), b"(a,b,c);"):
        with pytest.raises(TypeError, match="a tree is Newick text"):
            phylo.compare(given, truth)


def test_trees_of_dendropy(data):
    dendropy = pytest.importorskip("dendropy")
    alignment, truth = data
    tree = dendropy.Tree.get(data=truth, schema="newick", preserve_underscores=True)
    assert phylo.compare(tree, truth)["branch_score"] == pytest.approx(0, abs=1e-6)
    fitted = phylo.evaluate(alignment, tree, "JC")
    again = dendropy.Tree.get(data=fitted.to_newick(), schema="newick")
    assert again.length() == pytest.approx(fitted.tree_length, rel=1e-6)


def test_trees_of_biopython(data):
    trees = pytest.importorskip("Bio.Phylo")
    _, truth = data
    tree = trees.read(io.StringIO(truth), "newick")
    # Its own writer would round the lengths.
    assert phylo.compare(tree, truth)["branch_score"] == pytest.approx(0, abs=1e-9)


def test_nonreversible_models_and_roots(data):
    alignment, truth = data
    rooted = phylo.root(truth, "midpoint")["tree"]
    model = "UNREST{1/2/1/3/1/1/1/1/4/1/1/1}"
    one = phylo.evaluate(alignment, rooted, model, opt="branches")
    assert one.root_frequencies.sum() == pytest.approx(1) and one.root_frequencies.shape == (4,)
    assert one.site_log_likelihoods.sum() == pytest.approx(one.log_likelihood, abs=1e-6)
    again = phylo.evaluate(alignment, one, one.models[0], opt="none")
    assert again.log_likelihood == pytest.approx(one.log_likelihood, abs=0.01)
    with pytest.raises(phylo.PhyloError, match="no root"):
        phylo.evaluate(alignment, truth, model)
    with pytest.raises(phylo.PhyloError, match="site_rates"):
        phylo.evaluate(alignment, rooted, model, site_rates=True)
    found = phylo.root(truth, alignment=alignment, model=model, replicates=200)["roots"]
    assert len(found) == 13 and found[0]["lnl"] >= found[1]["lnl"]
    assert sum(row["bp_rell"] for row in found) == pytest.approx(1)
    counted = phylo.rootstrap(found[0]["tree"], [row["tree"] for row in found])
    assert counted["root"] == pytest.approx(1 / 13) and counted["elsewhere"] == pytest.approx(0)
    for wrong in ({}, {"by": "mad", "model": model}, {"alignment": alignment}):
        with pytest.raises(phylo.PhyloError, match="give by"):
            phylo.root(truth, **wrong)
    for wrong in ("GTR", "HKY+P"):
        with pytest.raises(phylo.PhyloError, match="UNREST"):
            phylo.root(truth, alignment=alignment, model=wrong)


COUNTS = "COUNTSFILE NPOP 4 NSITES 16\nCHROM POS one two three four\n" + "".join(
    f"1 {site} {cells}\n"
    for site, cells in enumerate(
        4
        * [
            "5,0,3,0 0,0,4,0 6,0,0,0 8,0,0,0",
            "0,5,0,0 0,6,0,0 0,0,0,7 0,1,0,6",
            "4,0,0,0 4,0,0,0 4,0,0,0 4,0,0,0",
            "0,0,4,0 0,0,4,0 0,0,4,0 0,0,4,0",
        ]
    )
)


def test_populations(data):
    alignment, truth = data
    counts = phylo.Counts(COUNTS)
    tree = "((one:1,two:1):1,three:1,four:1);"
    given = phylo.evaluate(counts, tree, "HKY+P+N4", opt="none")
    fitted = phylo.evaluate(counts, tree, "HKY+P+N4")
    assert fitted.log_likelihood > given.log_likelihood and "+N4" in fitted.models[0]
    assert fitted.root_frequencies.shape == (22,)
    with pytest.raises(phylo.PhyloError, match="needs Counts"):
        phylo.evaluate(alignment, truth, "HKY+P")
    with pytest.raises(phylo.PhyloError, match="counts are for"):
        phylo.evaluate(counts, tree, "HKY")
    with pytest.raises(phylo.PhyloError, match="COUNTSFILE"):
        phylo.Counts("nothing")
    with pytest.raises(OSError):
        phylo.Counts.read("/nowhere/a.cf")


def test_gene_trees_and_models_of_loci(data):
    alignment, truth = data
    characters = alignment.to_numpy()
    loci = {
        "left": phylo.Alignment(alignment.names, characters[:, :200]),
        "right": phylo.Alignment(alignment.names, characters[:, 200:]),
    }
    shown = []
    found = phylo.genes(loci, "JC", support=["abayes"], progress=lambda *now: shown.append(now))
    assert [row["name"] for row in found["loci"]] == ["left", "right"] and found["skipped"] == []
    assert all(needed == 2 for _, needed in shown)
    lines = "JC, left = 1-200\nJC, right = 201-400\n"
    again = phylo.genes(alignment, lines, support=["abayes"], engines=1)
    assert [row["tree"] for row in again["loci"]] == [row["tree"] for row in found["loci"]]
    assert phylo.species([row["tree"] for row in found["loci"]])["taxa"] == 8
    chosen = phylo.partition_models(loci, tree=truth, free_rates_max=0, merge="greedy")
    assert 1 <= len(chosen["subsets"]) <= 2 and chosen["score"] <= chosen["score_before"]
    fitted = phylo.evaluate(alignment, truth, chosen["lines"])
    assert len(fitted.models) == len(chosen["subsets"])
    for call in (phylo.genes, phylo.partition_models):
        with pytest.raises(phylo.PhyloError, match="dict of alignments"):
            call(alignment)
        with pytest.raises(phylo.PhyloError, match="no locus"):
            call({})
        with pytest.raises(TypeError):
            call({"left": truth})
    with pytest.raises(phylo.PhyloError, match="leave out"):
        phylo.genes(loci, lines)
    with pytest.raises(phylo.PhyloError, match="support"):
        phylo.genes(loci, "JC", support=["fbp"])
    with pytest.raises(phylo.PhyloError, match="rcluster"):
        phylo.partition_models(loci, rcluster=0)


def test_refined_bootstraps(data):
    alignment, truth = data
    found = phylo.support(truth, alignment=alignment, model="JC", kind="ufboot", replicates=100, bnni=True)
    assert len(found["values"]) == 5 and found["replicates"] == 100
    with pytest.raises(phylo.PhyloError, match="ufboot"):
        phylo.support(truth, alignment=alignment, model="JC", kind="abayes", bnni=True)


def test_all_pairs_of_trees():
    found = phylo.compare_all(["((a,b),c,(d,e));", "((a,c),b,(d,e));", "((a,b),c,(d,e));"])
    assert found["rf_matrix"] == [[0, 2, 0], [2, 0, 2], [0, 2, 0]]
    assert abs(found["rf_mean"] - 4 / 3) < 1e-12
    assert (found["trees"], found["topologies"]) == (3, 2)
    with pytest.raises(phylo.PhyloError, match="two at least"):
        phylo.compare_all(["((a,b),c,d);"])


def test_roots_and_consensus(data):
    _, truth = data
    assert phylo.root(truth, ["t1"])["tree"].startswith("(")
    for by in ("mad", "midpoint"):
        rooted = phylo.root(truth, by)
        assert phylo.compare(rooted["tree"], truth)["rf"] == 0
        assert ("deviation" in rooted) == (by == "mad")
    trees = ["((a,b),c,(d,e));", "((a,b),d,(c,e));", "((a,c),b,(d,e));"]
    found = phylo.consensus(trees)
    assert found["trees"] == 3 and found["tree"] == "(a,b,(c,(d,e)67)67);"
    assert phylo.consensus(trees, rule="strict")["branches"] == 0
    assert phylo.consensus(trees, above=0.7)["branches"] == 0
    assert phylo.consensus(trees, skip=2)["shares"] == [1.0, 1.0]


def test_supports_tests_and_ancestors(data):
    alignment, truth = data
    other = phylo.search(alignment, "JC", starts=0, bootstraps=3, seed=2, jackknife=0.5).bootstraps
    for kind in ("fbp", "tbe"):
        found = phylo.support(truth, bootstraps=[truth, *other], kind=kind)
        assert found["kind"] == kind and found["replicates"] == 4
        assert len(found["values"]) == found["branches"] == 5 and min(found["values"]) >= 0.25
    found = phylo.support(truth, alignment=alignment, model="GTR+G", kind="abayes")
    assert found["mean"] > 0.5 and len(found["values"]) == 5
    _, wrong = phylo.simulate(MODEL, 10, taxa=8, seed=99)
    assert phylo.compare(truth, wrong)["rf"] > 2
    verdicts = phylo.test(alignment, [truth, wrong], "GTR+G", replicates=1000)
    assert verdicts[0]["lnl"] > verdicts[1]["lnl"] and verdicts[0]["p_au"] > verdicts[1]["p_au"]
    found = phylo.ancestors(alignment, truth, MODEL, opt="none")
    assert len(found["nodes"]) == 6 and all(len(node["sequence"]) == 400 for node in found["nodes"])
    rows = {node["name"]: node["sequence"] for node in found["nodes"]}
    tips = dict(line.split() for line in alignment.to_phylip().splitlines()[1:])
    assert found["mutations"]
    for parent, child, site, old, new in found["mutations"]:
        assert rows[parent][site - 1] == old != new == {**rows, **tips}[child][site - 1]


def test_species_and_concordance(data):
    alignment, truth = data
    genes = ["((a,b),c,(d,e));", "((a,b),c,(d,e));", "((a,c),b,(d,e));"]
    found = phylo.species(genes)
    assert found["exact"] and found["quartets_shared"] == 13
    assert phylo.compare(found["tree"], genes[0])["rf"] == 0
    assert phylo.species(genes, score=genes[2])["quartets_shared"] < 13
    unsure = ["((a,b)40,(c,d));", "((a,c)90,(b,d));", "((a,b)40,(c,d));"]
    assert phylo.compare(phylo.species(unsure)["tree"], unsure[0])["rf"] == 0
    weighted = phylo.species(unsure, weights="support")
    assert phylo.compare(weighted["tree"], unsure[1])["rf"] == 0
    assert weighted["weight_shared"] == pytest.approx(0.9) and weighted["weight"] == pytest.approx(1.7)
    scored = phylo.species(unsure, weights="support", score=unsure[0], support_range=(0, 400))
    assert scored["weight_shared"] == pytest.approx(0.2)
    for wrong in ({"weights": "none"}, {"weights": "both"}, {"support_range": (0, 1)}):
        with pytest.raises(phylo.PhyloError):
            phylo.species(unsure, **wrong)
    shares = phylo.concordance(genes[0], genes=genes)["branches"]
    assert sorted(row["genes"]["gcf"] for row in shares) == pytest.approx([200 / 3, 100])
    sites = phylo.concordance(truth, alignment=alignment, model="GTR+G", likelihood=True)["branches"]
    assert len(sites) == 5 and all(0 <= row["likelihood"]["scf"] <= 100 for row in sites)
    with pytest.raises(phylo.PhyloError, match="genes"):
        phylo.concordance(truth)


def test_dates():
    tree = "((a:0.02,b:0.01):0.01,(c:0.03,d:0.015):0.005);"
    dates = {"a": 2003, "b": "2002-01-01", "c": 2003.5, "d": "b(2002,2002.1)"}
    found = phylo.date(tree, 500, dates=dates, replicates=20)
    assert found["rate"] == pytest.approx(0.01, rel=1e-3)
    assert found["root_date"] == pytest.approx(2000, abs=0.01)
    low, high = found["rate_interval"]
    assert low < 0.01 < high
    by_name = {node["name"]: node["date"] for node in found["nodes"]}
    assert by_name["a"] == 2003 and math.isclose(by_name["Node2"], 2001, abs_tol=0.01)
    text = phylo.date(tree, 500, dates="a 2003\nb 2002\nc 2003.5\nd 2002\n")
    assert text["rate"] == pytest.approx(0.01, rel=1e-6)
    rooted = phylo.date("((a:0.02,b:0.01):0.5,(c:0.01,o:0.3):0.1);", 500, dates={"a": 2, "b": 1}, outgroup=["c", "o"])
    assert rooted["root_date"] == pytest.approx(0, abs=1e-6)
    with pytest.raises(phylo.PhyloError, match="signal"):
        phylo.date("(a:0.5,b:0.3);", 100, dates={"a": 0, "b": 8})
    with pytest.raises(phylo.PhyloError, match="does not end in a date"):
        phylo.date(tree, 100)
    # A name that would open a comment in a file of dates.
    renamed = phylo.date(tree.replace("a:", "#a:"), 500, dates={**dates, "#a": dates["a"]})
    assert renamed["dates_unused"] == 1
    assert (renamed["nodes"][2]["name"], renamed["nodes"][2]["date"]) == ("#a", 2003)
    for wrong in ({"sites": 0}, {"sites": 500, "replicates": 100_001}):
        with pytest.raises(phylo.PhyloError, match="at least 1, replicates at most 100000"):
            phylo.date(tree, dates=dates, **wrong)


def test_a_sequence_is_placed_where_it_was(data):
    alignment, truth = data
    reference = "((a:0.1,b:0.2):0.15,(c:0.1,(d:0.2,e:0.1):0.1):0.2,f:0.25);"
    whole = reference.replace("f:0.25", "(f:0.15,q:0.2):0.1")
    made, _ = phylo.simulate("JC", 500, tree=whole, seed=4)
    found = phylo.place(made, reference, "JC", opt="none")
    assert [placed["n"] for placed in found["placements"]] == [["q"]]
    edge, lnl, ratio, distal, pendant = found["placements"][0]["p"][0]
    assert f"f:0.2500000000{{{edge}}}" in found["tree"] and ratio > 0.5
    assert 0.05 < pendant < 0.5 and 0 <= distal <= 0.25
    assert json.loads(json.dumps(found)) == found
    with pytest.raises(phylo.PhyloError, match="lacks"):
        phylo.place(alignment, truth, "JC")


def test_partitions_of_unlinked_lengths_and_rates(data):
    alignment, truth = data
    lines = "JC, one = 1-200\nJC, two = 201-400\n"
    own = phylo.evaluate(alignment, truth, lines, brlen="unlinked")
    linked = phylo.evaluate(alignment, truth, lines, brlen="linked", site_rates=True)
    assert len(own.trees) == 2 and own.tree == own.trees[0] and own.site_rates is None
    assert own.log_likelihood > linked.log_likelihood and linked.trees == [linked.tree]
    rates = phylo.evaluate(alignment, truth, "JC+G", site_rates=True).site_rates
    assert rates.shape == (400,) and rates.min() < 1 < rates.max()


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
        (lambda a, t: phylo.evaluate(a, t, "JC", brlen="free"), phylo.PhyloError, "free"),
        (lambda a, t: phylo.search(a, "JC", jackknife=1.5), phylo.PhyloError, "jackknife"),
        (lambda a, t: phylo.support(t, kind="fbp"), phylo.PhyloError, "bootstraps"),
        (lambda a, t: phylo.support(t, bootstraps=[t], kind="lbp"), phylo.PhyloError, "alignment"),
        (lambda a, t: phylo.test(a, [t], "JC"), phylo.PhyloError, "at least 2"),
        (lambda a, t: phylo.test(a, [t, t], "JC", replicates=5), phylo.PhyloError, "100 to"),
        (lambda a, t: phylo.root(t, ["nowhere"]), phylo.PhyloError, "nowhere"),
        (lambda a, t: phylo.root(t, "top"), phylo.PhyloError, "top"),
        (lambda a, t: phylo.rootstrap(t, [t]), phylo.PhyloError, "no root"),
        (lambda a, t: phylo.consensus([]), phylo.PhyloError, "no trees"),
        (lambda a, t: phylo.consensus([t], above=0.2), phylo.PhyloError, "above"),
        (lambda a, t: phylo.species(["(a,b"]), phylo.PhyloError, "tree 1"),
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


@pytest.mark.parametrize(
    "prepared, call",
    [
        ("a, t = p.simulate('JC', 3000, taxa=150, seed=1)", "p.search(a, 'GTR+G', starts=10000)"),
        ("t = [p.simulate('JC', 1, taxa=200, seed=k)[1] for k in range(40)] * 100", "p.compare_all(t)"),
    ],
)
def test_interrupt(prepared, call):
    """Ctrl-C ends a long call at once, with KeyboardInterrupt."""
    script = (
        f"import sidecore_phylo as p; {prepared}\n"
        f"try:\n  print('begin', flush=True); {call}\n"
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
