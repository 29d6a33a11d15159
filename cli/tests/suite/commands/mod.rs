//! Every command of docs/commands.md, run as scripts run it: exit status, one JSON object and
//! nothing else, the promised keys with units in their names, pictures, and one line where it
//! cannot run.
//!
//! Why here: the parts test what they do; this tests that they are one program. Needs root and
//! `scripts/setup`, as they do. Must stay true: a command that is put on the page and not run here
//! fails; the whole takes less than a minute.

#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

mod containers;
mod contract;
pub(crate) mod inputs;
use crate::namespace;
mod refusals;
mod services;

use contract::Promise;
use inputs::sidecore;
use std::collections::BTreeSet;

/// Command line of each command that ends by itself: its name on the page, and its arguments.
const RUNS: &[(&str, &str)] = &[
    (
        "block pack",
        "raw.bin -o packed.img --format cloop --frame 64KiB --level 1 --engines 1",
    ),
    ("block unpack", "made.img -o unpacked.bin"),
    ("block info", "made.img --json"),
    ("block verify", "made.img --json"),
    ("block index", "frames.zst --json"),
    ("block clone", "made.img one.ovl --json"),
    ("block rebase", "made.img kept.ovl based.ovl --json"),
    ("block diff", "raw.bin other.bin --json"),
    ("block commit", "made.img kept.ovl -o committed.img --json"),
    (
        "block export",
        "made.img --overlay kept.ovl --qcow2 -o exported.qcow2 --json",
    ),
    ("block ls", "made-tree.img --long --json"),
    ("block cat", "made-tree.img hello"),
    ("block find", "made-tree.img --name h* --type f --json"),
    (
        "block extract",
        "made-tree.img -C extracted --overwrite --json",
    ),
    ("block bench", "--quick --only lzo,stages --rounds 1 --json"),
    ("store init", "made.store --chunk 4KiB --json"),
    ("store domain", "made.keys --json"),
    (
        "store put",
        "made.store made.img --name disk:1 --level 1 --engines 1 --json",
    ),
    ("store list", "made.store --json"),
    ("store get", "made.store disk:1 -o got.bin --json"),
    ("store verify", "made.store --read-data --json"),
    ("store copy", "made.store copied.store --json"),
    ("store stat", "copied.store --json"),
    ("store remove", "copied.store disk:1 --json"),
    ("store gc", "copied.store --lease 1ms --compact 70 --json"),
    ("cell table1", "--machine cell.toml --svg table1.svg --json"),
    ("cell table2", "--machine cell.toml --svg table2.svg --json"),
    (
        "cell fig7",
        "--bootstraps 1,9 --machine cell.toml --svg fig7.svg --json",
    ),
    (
        "cell fig8",
        "--bootstraps 1,9 --machine cell.toml --svg fig8.svg --json",
    ),
    (
        "cell fig9",
        "--bootstraps 1,9 --machine cell.toml --svg fig9.svg --json",
    ),
    ("cell uio", "--svg uio.svg --json"),
    ("offload run", "-- true"),
    ("phylo beagle", "--engines 1 -- true"),
    ("rdma run", "-- true"),
    ("net run", "--loopback -- true"),
    (
        "offload bench",
        "--quick --only trips,edtlp,loops,callers,patterns,async --workers 1 --json",
    ),
    (
        "phylo evaluate",
        "--msa made.phy --tree made.nwk --model JC --opt branches --brlen linked \
         --site-lnl site.lnl --tree-out used.nwk --json",
    ),
    (
        "phylo search",
        "--msa made.phy --model JC --brlen unlinked --starts 1 --bootstraps 1 --seed 1 --engines 1 \
         --policy equi --polytomies --prefix found --json",
    ),
    (
        "phylo simulate",
        "--tree made.nwk --sites 60 --model JC --seed 1 -o again.phy",
    ),
    (
        "phylo genes",
        "--msa made.phy --model made.parts --support abayes --engines 1 --prefix genes --json",
    ),
    ("phylo species", "two.nwk --contract 10 --json"),
    (
        "phylo concordance",
        "--tree made.nwk --genes two.nwk --msa made.phy --model JC --likelihood --quartets 50 \
         --table cf.tsv --json",
    ),
    ("phylo compare", "made.nwk made.nwk --json"),
    (
        "phylo support",
        "--tree made.nwk --msa made.phy --model JC --support sh-alrt --replicates 200 --json",
    ),
    (
        "phylo models",
        "--msa made.phy --free-rates-max 2 --engines 1 -o made.models --json",
    ),
    (
        "phylo test",
        "--msa made.phy --trees two.nwk --model JC --replicates 500 --engines 1 --json",
    ),
    (
        "phylo ancestors",
        "--msa made.phy --tree made.nwk --model JC --engines 1 -o states.tsv --tree-out nodes.nwk \
         --fasta nodes.fasta --mutations changes.tsv --json",
    ),
    ("trace summary", "events.json --json"),
    (
        "phylo outbreak",
        "--msa made.maple --model JC --rounds 2 --polytomies -o outbreak.nwk --mutations muts.json \
         --dates-in-names --dated outbreak.dated --dates-table outbreak.dates --engines 1 --json",
    ),
    (
        "phylo place",
        "--msa made.phy --tree five.nwk --model JC --opt branches --keep 3 --engines 1 --json",
    ),
    ("phylo consensus", "two.nwk --rule extended --json"),
    ("phylo root", "made.nwk --mad --json"),
    (
        "phylo date",
        "made.nwk --dates made.dates --sites 60 --replicates 10 --engines 1 --table dates.tsv \
         --json",
    ),
    ("phylo draw", "made.nwk -o made.svg --form circular --json"),
    ("phylo bench kernels", "--quick --json"),
    (
        "phylo bench grain",
        "--bootstraps 1 --rounds 1 --taxa 6 --sites 100 --json",
    ),
    ("phylo bench beagle", "--quick --rounds 1 --json"),
    ("tlb", "--quick --levels-only --json"),
    ("spe env", ""),
    ("spe run", "--timeline spe.svg -- true"),
    ("spe document", "--quick --json"),
    ("doctor", "--json"),
    (
        "net bench",
        "--quick --only rpc,papers --rounds 1 --svg net.svg --json",
    ),
    (
        "papers",
        "--quick --only cell-table2,cell-uio --state kept -o page.html --json",
    ),
];

/// The tour packs the machine's files and takes a minute: `.ci/run` runs it.
const NOT_HERE: &str = "tour";

fn run_group(group: &str) {
    for promise in contract::read() {
        let Some((_, rest)) = RUNS.iter().find(|(name, _)| *name == promise.name) else {
            continue;
        };
        if promise.name.starts_with(group) {
            keeps(&promise, rest);
        }
    }
}

/// Runs the command and holds it to its promise.
fn keeps(promise: &Promise, rest: &str) {
    let words = format!("{} {rest}", promise.name);
    let output = sidecore(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    // With other tests running, a small measurement need not meet its claim, and a busy machine may
    // show no level of translation; a peer may be missing.
    let may_fail = ["phylo bench beagle", "phylo bench grain", "tlb"].contains(&&*promise.name);
    let status = output.status.code();
    assert!(
        status == Some(0) || may_fail && status == Some(1),
        "{words}: {status:?} {said}"
    );
    if promise.has("--json") {
        let sees_nothing = promise.name == "tlb" && status == Some(1);
        let keys = promise.keys.iter();
        let keys = keys.filter(|key| !(sees_nothing && key.starts_with("levels[].")));
        json(keys, &words, &output.stdout);
    }
    if promise.has("--svg") {
        let (_, file) = rest.split_once("--svg ").expect("the picture is asked for");
        let file = file.split(' ').next().unwrap();
        let drawn = std::fs::read_to_string(inputs::folder().join(file)).unwrap();
        assert!(
            drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"),
            "{words}"
        );
    }
}

/// One object, all keys, units in names.
fn json<'k>(keys: impl IntoIterator<Item = &'k String>, words: &str, text: &[u8]) {
    let report: serde_json::Value = serde_json::from_slice(text)
        .unwrap_or_else(|error| panic!("{words}: {error}: {}", String::from_utf8_lossy(text)));
    assert!(report.is_object(), "{words}: {report}");
    for key in keys {
        if let Some(problem) = contract::missing(&report, key) {
            panic!("{words}: {problem}");
        }
    }
    let unitless = contract::unitless(&report);
    assert!(
        unitless.is_empty(),
        "{words}: no unit in the name of {unitless:?}"
    );
}

#[test]
fn images() {
    run_group("block");
    let raw = std::fs::read(inputs::folder().join("raw.bin")).unwrap();
    assert!(raw == std::fs::read(inputs::folder().join("unpacked.bin")).unwrap());
}

#[test]
fn stores() {
    run_group("store");
    let read = |name: &str| std::fs::read(inputs::folder().join(name)).unwrap();
    assert!(read("got.bin") == read("raw.bin"));
    // A version is an image for the other commands, in a domain with its keys.
    let ok = |words: &str| {
        let output = sidecore(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words}: {said}");
    };
    ok("store put made.store store:made.store#disk:1 --name disk:2 --engines 1");
    ok("block export store:made.store#disk:2 -o again.bin --engines 1");
    ok("store get made.store disk:2 --image -o again.img --engines 1");
    ok("block unpack again.img -o unpacked-again.bin");
    assert!(read("again.bin") == read("raw.bin"));
    assert!(read("unpacked-again.bin") == read("raw.bin"));
    ok("store init locked.store");
    ok("store domain locked.keys");
    ok("store put locked.store raw.bin --name a --domain locked.keys --engines 1");
    ok("store domain locked.keys --rotate");
    ok("store verify locked.store --read-data --domain locked.keys");
    ok("block verify store:locked.store#a --domain locked.keys --engines 1");
    ok("block clone store:locked.store#a locked.ovl --domain locked.keys");
    let overlay = sidecore("block info locked.ovl --json").stdout;
    let overlay: serde_json::Value = serde_json::from_slice(&overlay).unwrap();
    assert_eq!(overlay["encrypted"], true);
    let refused = sidecore("block info store:locked.store#a");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--domain"), "{said}");
    // Damage is found, and ends with 1.
    let pack = inputs::folder()
        .join("locked.store/packs")
        .read_dir()
        .unwrap();
    let pack = pack.map(|entry| entry.unwrap().path()).next().unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let checked = sidecore("store verify locked.store --read-data");
    assert_eq!(checked.status.code(), Some(1));
    let unreadable = sidecore("store get locked.store a -o x.bin --domain locked.keys");
    assert_eq!(unreadable.status.code(), Some(2));
    assert!(!inputs::folder().join("x.bin").exists());
}

#[test]
fn the_cell() {
    run_group("cell");
}

#[test]
fn engines_translation_and_the_machine() {
    run_group("offload");
    run_group("tlb");
    run_group("spe");
    run_group("doctor");
    run_group("trace");
    run_group("papers");
}

#[test]
fn phylogenies() {
    run_group("phylo");
    let sites = std::fs::read_to_string(inputs::folder().join("site.lnl")).unwrap();
    assert_eq!(sites.lines().count(), 60);
    let drawn = std::fs::read_to_string(inputs::folder().join("made.svg")).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    let states = std::fs::read_to_string(inputs::folder().join("states.tsv")).unwrap();
    assert_eq!(states.lines().count(), 1 + 4 * 60);
    let changes = std::fs::read_to_string(inputs::folder().join("changes.tsv")).unwrap();
    assert!(changes.starts_with("parent\tchild\tsite\tfrom\tto\nNode"));
    // What was chosen is a model that the other commands take.
    let rest = "phylo evaluate --msa made.phy --tree made.nwk --model made.models --json";
    assert_eq!(sidecore(rest).status.code(), Some(0));
}

#[test]
fn the_stack_measured() {
    run_group("net");
}

#[test]
fn each_command_of_the_page_is_run_and_refuses_what_is_wrong() {
    let page: BTreeSet<String> = contract::read()
        .into_iter()
        .map(|promise| promise.name)
        .collect();
    let run: BTreeSet<String> = RUNS
        .iter()
        .map(|(name, _)| *name)
        .chain(services::RUN)
        .chain([NOT_HERE])
        .map(str::to_owned)
        .collect();
    assert_eq!(
        page, run,
        "docs/commands.md on the left, what is run here on the right"
    );
    let refused: BTreeSet<String> = refusals::names();
    let missing: Vec<_> = page.difference(&refused).collect();
    assert!(missing.is_empty(), "no bad input is tried for {missing:?}");
}

#[test]
fn help_knows_every_option_of_the_page() {
    for promise in contract::read() {
        let output = sidecore(&format!("{} --help", promise.name));
        let help = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", promise.name);
        for option in &promise.options {
            let listed = help.lines().any(|line| {
                let mut words = line.split([' ', ',']);
                line.starts_with(' ') && words.any(|word| word == option)
            });
            assert!(
                listed,
                "sidecore {} --help has no {option}: {help}",
                promise.name
            );
        }
    }
    for format in ["zstd", "lz4", "cloop", "cloop-lzo", "raw"] {
        let help = sidecore("block pack --help").stdout;
        assert!(
            String::from_utf8_lossy(&help).contains(format),
            "--format {format}"
        );
    }
}
