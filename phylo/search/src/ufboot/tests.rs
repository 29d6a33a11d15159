use super::*;
use crate::likelihood::Options as LikelihoodOptions;
use crate::model::{Model, ModelName};
use crate::msa::{Alignment, Alphabet, Patterns};
use crate::newick::Newick;
use crate::runner::Serial;
use crate::support::{Kind, Reference};

fn likelihood(sites: &[&str]) -> (Likelihood<Serial>, Alignment) {
    let names = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec();
    let rows = (0..6)
        .map(|taxon| sites.iter().map(|site| site.as_bytes()[taxon]).collect())
        .collect();
    let alignment = Alignment::new(names, rows).unwrap();
    let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
    let newick = Newick::parse("((a,b),(c,d),(e,f));").unwrap();
    let tree = Tree::from_newick(&newick, alignment.names()).unwrap();
    let read = &mut |_: &str| Err(std::io::Error::other("no file"));
    let model = Model::new(ModelName::parse("JC", read).unwrap(), &patterns);
    let options = LikelihoodOptions::default();
    let mut likelihood = Likelihood::new(tree, patterns, model, Serial, options).unwrap();
    likelihood.optimise_lengths(0.001, 50).unwrap();
    (likelihood, alignment)
}

#[test]
fn supports_say_what_the_sites_say() {
    let mut sites = vec!["AAAAAA"; 60];
    sites.extend(["CCAAAA"; 12]);
    sites.extend(["AAGGAA"; 12]);
    // Three for ef, two for de.
    sites.extend(["AAAATT", "AAAATT", "AAAATT", "AAACCA", "AAACCA"]);
    let (mut likelihood, alignment) = likelihood(&sites);
    let options = Options {
        replicates: 400,
        rounds_max: 100,
        ..Options::default()
    };
    let found = ufboot(&mut likelihood, &options, |_| {}).unwrap();
    assert_eq!(found.trees.len(), 400);
    assert!((likelihood.evaluate().unwrap() - found.lnl).abs() < 1e-6);
    let text = |tree: &Tree| Newick::parse(&tree.to_newick(alignment.names())).unwrap();
    let trees: Vec<Newick> = found.trees.iter().map(text).collect();
    let newick = Newick::parse("((a,b),(c,d),(e,f));").unwrap();
    let reference = Reference::new(&newick).unwrap();
    let tally = reference.tally_all(&trees, Kind::Fbp, &Serial).unwrap();
    let values: Vec<f64> = reference.values(&tally).iter().map(|v| v.1).collect();
    assert!(values[0] > 0.97, "{values:?}");
    assert!(values[2] > 0.4 && values[2] < 0.97, "{values:?}");
    // One seed, one result.
    likelihood.set_tree(Tree::from_newick(&newick, alignment.names()).unwrap());
    likelihood.optimise_lengths(0.001, 50).unwrap();
    let again = ufboot(&mut likelihood, &options, |_| {}).unwrap();
    let texts = |trees: &[Tree]| {
        trees
            .iter()
            .map(|t| t.to_newick(alignment.names()))
            .collect()
    };
    let [one, other]: [Vec<String>; 2] = [texts(&found.trees), texts(&again.trees)];
    assert_eq!(one, other);
}

#[test]
fn a_branch_without_length_supports_no_resolution_more_than_others() {
    // The data do not resolve ab, cd, ef and g; a resolution that the search happened to have must
    // not stay.
    let names: Vec<String> = ["a", "b", "c", "d", "e", "f", "g"]
        .map(str::to_owned)
        .into();
    let text = "((a:1,b:1):1,(c:1,d:1):1,((e:1,f:1):1,g:1):0.000001);";
    let parsed = Newick::parse(text).unwrap();
    let mut random = Random::new(3);
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..3_000 {
        let mut tree = Tree::from_newick(&parsed, &names).unwrap();
        let before = replicates::shape(&tree);
        resolve(&mut tree, &mut random);
        assert_eq!(replicates::shape(&tree), before);
        *counts.entry(tree.topology()).or_insert(0) += 1;
    }
    let counts: Vec<i32> = counts.into_values().collect();
    assert_eq!(counts.len(), 3, "{counts:?}");
    // Six standard deviations of 26.
    assert!(counts.iter().all(|n| (n - 1_000).abs() < 156), "{counts:?}");
}
