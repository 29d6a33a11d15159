//! Three walks as a new user would take them: an operator with a large image, a biologist with an
//! alignment, a network engineer with an unchanged program. Each follows a page of docs/users, on
//! files of its own. Before them come the pages that the README leads to.
//!
//! Why here: the sessions of the pages run where the program was built, on the pages' own data,
//! with everything installed. A walk has the program alone on its `PATH` next to the basic tools of
//! every system, an empty home, and data that the page does not know.
//!
//! A block of a session that needs a program which is not there is left out with the rest of its
//! section, as its reader would do.
//! Must stay true: each walk has mount, network and process namespaces of its own. Needs root.

use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Programs that every system has.
const BASICS: [&str; 30] = [
    "sh",
    "awk",
    "basename",
    "cat",
    "cmp",
    "cp",
    "cut",
    "date",
    "dd",
    "echo",
    "env",
    "grep",
    "head",
    "ls",
    "mkdir",
    "mount",
    "mv",
    "printf",
    "rm",
    "sed",
    "seq",
    "sha256sum",
    "sleep",
    "sort",
    "tail",
    "test",
    "touch",
    "tr",
    "umount",
    "wc",
];

/// A user's errand.
struct Walk {
    page: &'static str,
    /// The user's own programs.
    programs: &'static [&'static str],
    /// Makes the user's files; takes the place of the page's commands that begin with one of
    /// `instead`.
    own: &'static str,
    instead: &'static [&'static str],
    /// The blocks that the walk must come to, by a part of a command in each.
    through: &'static [&'static str],
}

/// Gaps, ambiguities, long names, the line ends of another system: as alignments come.
const ALIGNMENT: &str = "\
sidecore phylo simulate --taxa 9 --sites 900 --seed 99 -o x.phy --tree-out true.nwk \
--model GTR{2/5/1/1/6/1}+FU{0.35/0.15/0.15/0.35}+G4m{0.9}
awk 'NR > 1 { s = $2; if (NR == 3) s = \"NNNNNNNN--------\" substr(s, 17); \
if (NR == 5) s = substr(s, 1, 880) \"RYRYRYRY????????-------\" ; \
if (NR == 5) s = substr(s, 1, 900); print \">\" $1 \"\\r\"; print s \"\\r\" }' x.phy > mine.fasta
cp mine.fasta a.phy; cp mine.fasta a.fasta";

#[test]
fn an_operator_with_a_large_image() {
    take(&Walk {
        page: "docs/users/images.md",
        programs: &["fusermount3"],
        // Text, noise, and a disk with more holes than data.
        own: "mkdir data; seq 1 3000000 > data/numbers; head -c 20000000 /dev/urandom > data/bash\n\
              dd if=/dev/urandom of=data/disk bs=1M count=8 seek=900 status=none",
        instead: &["mkdir data"],
        through: &[
            "block pack data",
            "block mount data.img",
            "--rootless",
            "block attach",
        ],
    });
}

#[test]
fn a_biologist_with_an_alignment() {
    take(&Walk {
        page: "docs/users/trees.md",
        programs: &[],
        own: ALIGNMENT,
        instead: &["sidecore phylo simulate", "awk 'NR > 1"],
        through: &[
            "phylo search --msa a.phy",
            "phylo models",
            "phylo draw",
            "phylo evaluate",
        ],
    });
}

#[test]
fn a_network_engineer_with_an_unchanged_program() {
    take(&Walk {
        page: "docs/users/run.md",
        programs: &["python3", "curl"],
        own: "mkdir site; head -c 3000000 /dev/urandom > site/large",
        instead: &[],
        through: &[
            "net up net.toml",
            "net run -- python3",
            "net run --loopback",
        ],
    });
}

/// The pages of five minutes, with the program alone next to what their texts name.
#[test]
fn newcomers_at_the_pages_that_the_readme_leads_to() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    for walk in [
        Walk {
            page: "docs/start/images.md",
            programs: &["fusermount3", "diff", "nbdinfo"],
            own: "true",
            instead: &[],
            through: &["block mount --rootless", "block verify", "block serve"],
        },
        Walk {
            page: "docs/start/trees.md",
            programs: &[],
            own: ALIGNMENT,
            instead: &["sidecore phylo simulate"],
            through: &["phylo search --msa a.phy", "phylo draw"],
        },
        Walk {
            page: "docs/start/sockets.md",
            programs: &["python3", "curl"],
            own: "mkdir site; head -c 3000000 /dev/urandom > site/large",
            instead: &[],
            through: &["net up net.toml", "net run -- python3", "net status"],
        },
        Walk {
            page: "docs/start/engines.md",
            programs: &[],
            own: "true",
            instead: &[],
            through: &["daemon --socket", "offload call xxh3"],
        },
    ] {
        assert!(readme.contains(walk.page), "{}", walk.page);
        take(&walk);
    }
}

/// The commands of the sessions of a page's section, block by block.
fn blocks(section: &str) -> Vec<Vec<String>> {
    let mut blocks = Vec::new();
    let mut inside = None;
    for line in section.lines() {
        match (&mut inside, line) {
            (None, "```console" | "```console measured") => inside = Some(Vec::new()),
            (Some(_), "```") => blocks.extend(inside.take()),
            (Some(block), line) => {
                if let Some(command) = line.strip_prefix("$ ") {
                    block.push(command.to_owned());
                } else if let (Some(more), Some(last)) = (line.strip_prefix("> "), block.last_mut())
                {
                    *last += &format!("\n{more}");
                }
            }
            (None, _) => {}
        }
    }
    blocks
}

fn take(walk: &Walk) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join(walk.page)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (bin, home) = (folder.path().join("bin"), folder.path().join("home"));
    for folder in [&bin, &home] {
        std::fs::create_dir(folder).unwrap();
    }
    // Installed: the program by itself, not next to what was built with it.
    std::fs::copy(env!("CARGO_BIN_EXE_sidecore"), bin.join("sidecore")).unwrap();
    for name in BASICS.iter().chain(walk.programs) {
        let places =
            ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(|place| Path::new(place).join(name));
        let Some(program) = places.iter().find(|place| place.exists()) else {
            assert!(walk.programs.contains(name), "{name} is not on this system");
            eprintln!("skipped: {name} is not installed");
            return;
        };
        symlink(program, bin.join(name)).unwrap();
    }
    let mut script = format!("set -e\n{}\n", walk.own);
    let mut taken = String::new();
    let is_there = |command: &String| {
        let first = command.split_whitespace().next().unwrap_or_default();
        let is_own = first.contains('=') || ["set", "cd", "kill", "wait"].contains(&first);
        is_own || bin.join(first).exists()
    };
    let is_replaced = |command: &String| walk.instead.iter().any(|own| command.starts_with(own));
    for section in page.split("\n## ") {
        let blocks = blocks(section);
        let blocks = blocks.iter().take_while(|block| block.iter().all(is_there));
        for command in blocks.flatten().filter(|command| !is_replaced(command)) {
            // The user's folder is there already.
            let command = command.replace("mkdir site &&", "mkdir -p site &&");
            taken += &format!("{command}\n");
            line(&mut script, &command);
        }
    }
    for part in walk.through {
        assert!(
            taken.contains(part),
            "{}: no `{part}` in\n{taken}",
            walk.page
        );
    }
    run(walk, &script, folder.path());
}

/// Adds a command; one that stays is ready when it has said something.
fn line(script: &mut String, command: &str) {
    match command.strip_suffix('&') {
        Some(server) => writeln!(
            script,
            "rm -f said; {server} > said 2>&1 &\n\
             for try in $(seq 600); do [ -s said ] && break; sleep 0.1; done"
        ),
        None => writeln!(script, "echo '$' {}\n{command}", quoted(command)),
    }
    .unwrap();
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn run(walk: &Walk, script: &str, folder: &Path) {
    let begin = "mkdir -p /run/sidecore; mount -t tmpfs tmpfs /run/sidecore; ip link set lo up; \
                 mkdir work; cd work; export PATH=\"$1\" HOME=\"$2\"; exec sh -c \"$3\"";
    let output = Command::new("/usr/bin/timeout")
        .args([
            "--kill-after=5",
            "300",
            "unshare",
            "--mount",
            "--net",
            "--pid",
        ])
        .args([
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ])
        .args(["bash", "-c", begin, "bash"])
        .args([folder.join("bin"), folder.join("home")])
        .arg(script)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .current_dir(folder)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{}: {:?}\n{said}{errors}",
        walk.page,
        output.status
    );
    for developers in ["cargo ", "scripts/"] {
        assert!(!errors.contains(developers), "{}: {errors}", walk.page);
    }
}
