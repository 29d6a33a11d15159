//! Bad input is refused alike everywhere: exit status 2, nothing on standard output, one line on
//! standard error that names the program and the fault.

use crate::commands::inputs::sidecore;
use std::collections::BTreeSet;

/// The command, what is wrong about the rest, and a word that the message must have.
const REFUSALS: &[(&str, &str, &str)] = &[
    ("block pack", "nowhere -o x.img", "nowhere"),
    ("block pack", "raw.bin -o x.img --format zsdt", "zstd"),
    ("block pack", "raw.bin -o x.img --frame 64XB", "64KiB"),
    ("block pack", "raw.bin", "--output"),
    ("block pack", "raw.bin -o x.img --encrypt", "--recipient"),
    (
        "block pack",
        "raw.bin -o x.img --encrypt --recipient age1x",
        "age-keygen",
    ),
    (
        "block pack",
        "raw.bin -o x.img --recipient age1x",
        "--encrypt",
    ),
    (
        "block pack",
        "raw.bin -o x.img --encrypt --passphrase-file nowhere",
        "nowhere",
    ),
    ("block pack", "empty -o x.img", "empty holds no bytes"),
    ("block unpack", "bad.img -o x.bin", "bad.img"),
    ("block info", "nowhere.img --json", "nowhere.img"),
    ("block info", "made.img --jsn", "--jsn"),
    ("block info", "tree", "tree: it is a directory"),
    ("block verify", "tree", "tree: it is a directory"),
    ("block index", "raw.bin", "no zstd file"),
    ("block verify", "frames-cut.zst", "sidecore block index"),
    ("block attach", "tree", "tree: it is a directory"),
    ("block mount", "tree tree", "tree: it is a directory"),
    ("block mount", "made-tree.img nowhere", "name a directory"),
    ("block bench", "--rounds x", "no whole number"),
    ("net echo", "10.77.0.2", "with the port"),
    ("block verify", "bad.img --json", "bad.img"),
    ("block mount", "nowhere.img tree", "nowhere.img"),
    ("block ls", "raw.bin", "no erofs, squashfs or ext4"),
    ("block find", "made-tree.img ../x", "out of the image"),
    ("block cat", "made-tree.img", "PATH"),
    ("block find", "made-tree.img --type x", "possible values"),
    ("block find", "made-tree.img --in-trace bad.nwk", "no trace"),
    ("block pack", "tree -o x.img --first nowhere", "nowhere"),
    (
        "block pack",
        "oci://localhost/a -o oci://localhost/b --mtime 0",
        "leave out",
    ),
    ("block extract", "made-tree.img", "--directory"),
    (
        "block extract",
        "made-tree.img -C x --owner root",
        "two numbers",
    ),
    ("block extract", "made-tree.img -C raw.bin", "raw.bin"),
    ("block snapshot", "nowhere.img", "nowhere.img"),
    ("block resize", "nowhere.img 1GiB", "nowhere.img"),
    ("block resize", "kept.ovl 4KiB", "does not become smaller"),
    ("block pack", "raw.bin -o x.img --exclude x", "no directory"),
    ("block pack", "--untar raw.bin -o x.img", "tar"),
    (
        "block serve",
        "made.img --nbd unix:x.sock --overlay small.ovl --size 4KiB",
        "larger",
    ),
    ("block clone", "nowhere one.ovl", "nowhere"),
    ("block clone", "made.img kept.ovl", "exists"),
    ("block clone", "made.img x.ovl --grain 5KiB", "power of two"),
    ("block clone", "made.img x.ovl --size 4KiB", "or larger"),
    ("block rebase", "made.img raw.bin x.ovl", "no overlay"),
    ("block rebase", "made.img kept.ovl kept.ovl", "exists"),
    ("block diff", "raw.bin made-tree.img", "of one size"),
    (
        "block commit",
        "made-tree.img kept.ovl -o x.img",
        "another image",
    ),
    ("block commit", "made.img raw.bin -o x.img", "no overlay"),
    ("block export", "bad.img -o x.bin", "bad.img"),
    (
        "block serve",
        "made-tree.img --nbd unix:x.sock --overlay kept.ovl",
        "another image",
    ),
    ("block layer", "made.img tree", "oci://REGISTRY"),
    (
        "block layer",
        "oci://localhost/a tree --digest x",
        "64 digits",
    ),
    ("block index", "raw.bin --push", "oci://"),
    ("snapshotter", "--address tcp:1", "unix:"),
    ("block umount", "tree", "tree"),
    ("block attach", "bad.img", "bad.img"),
    ("block detach", "/dev/null", "/dev/null"),
    ("block serve", "made.img --nbd nonsense", "unix:PATH"),
    ("block serve", "made.img", "--nbd unix:PATH"),
    (
        "block serve",
        "made.img --nbd unix:x.sock --metrics tcp:example.org:1",
        "tcp:ADDRESS:PORT",
    ),
    (
        "block serve",
        "made.img --nbd unix:x.sock --sector-size 1KiB",
        "512 or 4KiB",
    ),
    ("block memory", "made.img", "--socket"),
    (
        "block memory",
        "made.img --socket x.sock --around 5KiB",
        "power of two",
    ),
    (
        "block memory",
        "made.img --socket x.sock --prefetch-trace bad.nwk",
        "no trace",
    ),
    ("block info", "store:nowhere#a", "holds no store"),
    ("store init", "x.store --chunk 5KiB", "power of two"),
    ("store init", "raw.bin", "raw.bin"),
    ("store domain", "raw.bin --rotate", "raw.bin"),
    ("store put", "tree made.img", "--name"),
    ("store put", "tree made.img --name a", "tree holds no store"),
    ("store list", "nowhere", "nowhere holds no store"),
    ("store get", "tree a -o x.bin", "tree holds no store"),
    ("store verify", "nowhere", "nowhere"),
    ("store copy", "nowhere x.store", "nowhere"),
    ("store stat", "nowhere", "nowhere"),
    ("store remove", "nowhere a", "nowhere"),
    ("store gc", "nowhere --lease long", "long"),
    ("block list", "--jsn", "--jsn"),
    ("block status", "made.img other.img", "other.img"),
    ("block bench", "--only everything", "everything"),
    ("cell table1", "--machine bad.toml", "bad.toml"),
    ("cell table2", "--machine nowhere.toml", "nowhere.toml"),
    ("cell fig7", "--svg /nowhere/x.svg", "/nowhere/x.svg"),
    ("cell fig8", "--machine bad.toml", "bad.toml"),
    ("cell fig9", "--seed many", "many"),
    ("cell uio", "--machine cell.toml", "--machine"),
    ("daemon", "--engines 0", "1 engine"),
    ("daemon", "--grace-ms long", "long"),
    ("top", "--once --socket nowhere.sock", "nowhere.sock"),
    ("offload bench", "--only nonsense", "nonsense"),
    ("offload kernels", "--socket nowhere.sock", "nowhere.sock"),
    ("daemon", "--kernels nowhere", "nowhere"),
    (
        "offload run",
        "-- /nonexistent/program",
        "/nonexistent/program",
    ),
    ("offload run", "true", "--"),
    (
        "phylo beagle",
        "-- /nonexistent/program",
        "/nonexistent/program",
    ),
    ("phylo beagle", "--engines 0 -- true", "--engines"),
    (
        "net run",
        "--loopback -- /nonexistent/program",
        "/nonexistent/program",
    ),
    ("net run", "--config nowhere.toml -- true", "nowhere.toml"),
    ("net run", "true", "--"),
    (
        "rdma serve",
        "127.0.0.1:0 --socket nowhere.sock",
        "nowhere.sock",
    ),
    ("rdma ping", "127.0.0.1:1 --bytes 70000", "65535"),
    (
        "rdma run",
        "-- /nonexistent/program",
        "/nonexistent/program",
    ),
    ("rdma run", "true", "--"),
    (
        "phylo evaluate",
        "--msa made.phy --tree bad.nwk --model JC",
        "bad.nwk",
    ),
    (
        "phylo evaluate",
        "--msa made.phy --tree made.nwk --model NOPE",
        "NOPE",
    ),
    (
        "phylo search",
        "--msa nowhere.phy --model JC --prefix x",
        "nowhere.phy",
    ),
    (
        "phylo search",
        "--msa made.phy --model JC --effort fast --starts 2 --prefix x",
        "leave --starts out",
    ),
    ("phylo simulate", "--sites 10 --model JC -o x.phy", "--taxa"),
    ("phylo genes", "--msa made.phy --prefix x", "without loci"),
    (
        "phylo genes",
        "--msa made.phy --model made.parts --support tbe --prefix x",
        "--bootstraps",
    ),
    ("phylo species", "bad.nwk", "bad.nwk"),
    (
        "phylo concordance",
        "--tree two.nwk --genes two.nwk",
        "two.nwk has 2 trees",
    ),
    ("phylo compare", "made.nwk bad.nwk", "bad.nwk"),
    ("phylo support", "--tree made.nwk", "--bootstraps"),
    (
        "phylo support",
        "--tree made.nwk --bootstraps two.nwk --support sh-alrt",
        "--msa",
    ),
    ("phylo models", "--msa nowhere.phy", "nowhere.phy"),
    ("phylo models", "--msa made.phy --merge", "--partitions"),
    (
        "phylo models",
        "--msa made.phy --rcluster 10",
        "--merge rclusterf",
    ),
    ("phylo models", "--msa made.phy --code 2", "--data codon"),
    (
        "phylo models",
        "--msa made.phy --partitions made.parts --data codon",
        "--partitions",
    ),
    (
        "phylo test",
        "--msa made.phy --trees made.nwk --model JC",
        "2",
    ),
    (
        "phylo ancestors",
        "--msa made.phy --tree two.nwk --model JC",
        "two.nwk has 2 trees",
    ),
    ("phylo outbreak", "--msa made.phy", "not genomes"),
    ("phylo outbreak", "--msa made.maple --model LG", "model LG"),
    (
        "phylo outbreak",
        "--msa made.maple --dated x.nwk",
        "--dates",
    ),
    (
        "phylo place",
        "--msa made.phy --tree made.nwk --model JC",
        "no sequence that the tree lacks",
    ),
    ("phylo consensus", "bad.nwk", "bad.nwk"),
    ("phylo consensus", "two.nwk --skip 2", "--skip 2"),
    ("phylo root", "made.nwk", "--outgroup"),
    ("phylo root", "made.nwk --outgroup nobody", "nobody"),
    ("phylo date", "made.nwk --sites 60", "--dates"),
    (
        "phylo date",
        "made.nwk --dates-in-names --sites 60",
        "does not end in a date",
    ),
    ("phylo draw", "bad.nwk -o x.svg", "bad.nwk"),
    ("phylo bench kernels", "--msa made.phy", "--tree"),
    ("phylo bench grain", "--rounds 0", "0"),
    ("phylo bench beagle", "--engines 0", "0"),
    ("tlb", "--core 9999", "9999"),
    ("spe env", "--nonsense", "--nonsense"),
    ("spe run", "/nonexistent/program", "/nonexistent/program"),
    ("spe document", "--folder", "--folder"),
    ("net up", "bad.toml", "line 1"),
    ("net status", "--socket nowhere.sock", "nowhere.sock"),
    ("net sessions", "--state open", "open"),
    ("net sessions", "--prefix 10.0.0.0/33", "/33"),
    (
        "net capture",
        "-w x.pcapng --filter port",
        "a port is missing",
    ),
    ("net capture", "-w - --json", "--json"),
    ("net capture", "-w - --file-bytes 1MiB", "--file-bytes"),
    ("net capture", "-w x.pcapng --file-bytes 1KiB", "64KiB"),
    ("net echo", "nowhere:7", "nowhere:7"),
    (
        "net discard",
        "0.0.0.0:7 --socket nowhere.sock",
        "nowhere.sock",
    ),
    (
        "net source",
        "0.0.0.0:7 --socket nowhere.sock",
        "nowhere.sock",
    ),
    ("net bench", "--only nonsense", "nonsense"),
    ("papers", "--only nonsense", "--list"),
    ("tour", "--dir /nowhere", "/nowhere"),
    ("trace summary", "nowhere.json", "nowhere.json"),
    ("trace summary", "raw.bin --json", "--trace-events"),
    (
        "block serve",
        "made.img --nbd unix:x.sock --trace-events raw.bin",
        "is no recording",
    ),
    ("ui", "--listen 0.0.0.0:80", "not on the loopback"),
    ("ui", "--listen nonsense", "unix:PATH"),
    ("ui", "--listen unix:raw.bin", "raw.bin"),
    ("ui", "--tree bad.nwk", "bad.nwk"),
    ("ui", "--tree nowhere.nwk", "nowhere.nwk"),
    ("ui", "--json", "--json"),
    ("doctor", "--loud", "--loud"),
    ("papers", "--only everything --state kept", "everything"),
    ("blok", "pack", "blok"),
];

/// The commands that have something wrong in the list.
pub(crate) fn names() -> BTreeSet<String> {
    REFUSALS
        .iter()
        .map(|(name, _, _)| (*name).to_owned())
        .collect()
}

#[test]
fn what_is_wrong_is_one_line_and_exit_status_2() {
    let problems: Vec<String> = REFUSALS.iter().filter_map(|case| problem(*case)).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn problem((name, rest, word): (&str, &str, &str)) -> Option<String> {
    let output = sidecore(&format!("{name} {rest}"));
    let said = String::from_utf8_lossy(&output.stderr)
        .trim_end()
        .to_owned();
    let good = output.status.code() == Some(2)
        && output.stdout.is_empty()
        && said.lines().count() == 1
        && said.starts_with("sidecore: ")
        && said.contains(word)
        // No cause is repeated.
        && said.matches("os error").count() <= 1;
    let status = output.status;
    (!good).then(|| format!("{name} {rest} ({word}): {status}: {said}"))
}
