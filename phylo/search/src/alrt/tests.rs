use super::*;
use crate::likelihood::Options;
use crate::model::{Model, ModelName};
use crate::msa::{Alignment, Alphabet, Patterns};
use crate::runner::Serial;

/// Four groups of two: `ab|cd` has many sites, `abcd|ef` one against one.
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
    let mut likelihood =
        Likelihood::new(tree, patterns, model, Serial, Options::default()).unwrap();
    likelihood.optimise_lengths(0.001, 50).unwrap();
    (likelihood, alignment)
}

#[test]
fn clear_branches_are_supported_and_others_not() {
    let mut sites = vec!["AAAAAA"; 40];
    sites.extend(["CCAAAA"; 12]);
    sites.extend(["AAGGAA"; 12]);
    // One for ef, one against it.
    sites.extend(["AAAATT", "CAAACA"]);
    let (mut likelihood, alignment) = likelihood(&sites);
    let before = likelihood.evaluate().unwrap();
    let tree = likelihood.tree().clone();
    let found = sh_alrt(&mut likelihood, 1_000, 1, |_, _| {}).unwrap();
    assert_eq!(
        found,
        sh_alrt(&mut likelihood, 1_000, 1, |_, _| {}).unwrap()
    );
    assert_eq!(found.len(), 3);
    assert!((likelihood.evaluate().unwrap() - before).abs() < 1e-6);
    assert_eq!(
        likelihood.tree().to_newick(alignment.names()),
        tree.to_newick(alignment.names())
    );
    let newick = Newick::parse("((a,b),(c,d),(e,f));").unwrap();
    let share = |own: &Support| format!("{:.0}", (100.0 * own.share).round());
    let text = labelled(&newick, &tree, alignment.names(), &found, share).unwrap();
    // By all three kinds the clear ones are clear, and the other is not.
    for (one, clear) in found.iter().map(|one| (one, one.share > 0.95)) {
        assert_eq!(one.posterior > 0.99 && one.local > 0.95, clear, "{one:?}");
        // Two rivals at `gain` below at best.
        let most = 1.0 / (1.0 + (-one.gain).exp());
        let least = 1.0 / (1.0 + 2.0 * (-one.gain).exp());
        assert!(
            (least - 1e-9..=most + 1e-9).contains(&one.posterior),
            "{one:?}"
        );
    }
    let of = |tip: &str| {
        let nodes = text.nodes();
        let tip = nodes.iter().position(|node| node.label == tip).unwrap();
        nodes[nodes[tip].parent.unwrap()]
            .label
            .parse::<f64>()
            .unwrap()
    };
    assert!(of("a") > 95.0 && of("c") > 95.0, "{text}");
    assert!(of("e") < 90.0, "{text}");
    assert_eq!(text.nodes()[0].label, "");
}

#[test]
fn a_worse_branch_has_none() {
    // ac|bd, not ab|cd.
    let mut sites = vec!["AAAAAA"; 30];
    sites.extend(["CACAAA"; 10]);
    let (mut likelihood, _) = likelihood(&sites);
    let found = sh_alrt(&mut likelihood, 200, 1, |_, _| {}).unwrap();
    assert!(
        found
            .iter()
            .any(|support| support.gain < 0.0 && support.share == 0.0),
        "{found:?}"
    );
}
