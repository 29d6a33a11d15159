//! Tiny inputs that the commands are run on, made once, and how a command is run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// Directory of the inputs; the tests' commands use their names as they are.
static INPUTS: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("commands");
    // What an earlier run left, if anything.
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    let text: Vec<u8> = (0..300_000_u32)
        .flat_map(|n| (n / 7).to_le_bytes())
        .collect();
    std::fs::write(folder.join("raw.bin"), &text).unwrap();
    let other: Vec<u8> = text.iter().rev().copied().collect();
    std::fs::write(folder.join("other.bin"), other).unwrap();
    std::fs::write(folder.join("empty"), "").unwrap();
    // Two frames of zstd, each one block that is not compressed (RFC 8878, section 3.1.1).
    let frame = b"\x28\xb5\x2f\xfd\x20\x05\x29\0\0hello";
    std::fs::write(folder.join("frames.zst"), [&frame[..], frame].concat()).unwrap();
    std::fs::write(folder.join("frames-cut.zst"), &frame[..10]).unwrap();
    std::fs::create_dir_all(folder.join("tree")).unwrap();
    std::fs::write(folder.join("tree/hello"), "hello\n").unwrap();
    let cell = include_str!("../../../../cell/sim/machines/cell.toml");
    std::fs::write(folder.join("cell.toml"), cell).unwrap();
    std::fs::write(folder.join("bad.toml"), "[nic\nkind = many").unwrap();
    std::fs::write(folder.join("bad.nwk"), "((a,b").unwrap();
    std::fs::write(folder.join("events.json"), EVENTS).unwrap();
    let two = "((t1,t2),t3,(t4,(t5,t6)));\n((t1,t3),t2,(t4,(t5,t6)));\n";
    std::fs::write(folder.join("two.nwk"), two).unwrap();
    let parts = "JC, one = 1-30\nauto, two = 31-60\n";
    std::fs::write(folder.join("made.parts"), parts).unwrap();
    let five = "((t1:0.1,t2:0.1):0.1,t3:0.1,(t4:0.1,t5:0.1):0.1);\n";
    std::fs::write(folder.join("five.nwk"), five).unwrap();
    let dates = "t1 2010\nmrca(t1,t2) 2000\nt3 2010\nt4 2010\nt5 2010\nt6 2010\nt2 2010\n";
    std::fs::write(folder.join("made.dates"), dates).unwrap();
    // A genome a year, each with one substitution more.
    let mut genomes = format!(">reference\n{}\n", "ACGT".repeat(50));
    for (year, sites) in [(2010, 0), (2011, 1), (2012, 2), (2013, 3), (2014, 4)] {
        genomes.push_str(&format!(">t{year}|{year}\n"));
        for site in 0..sites {
            // The base there is an A.
            genomes.push_str(&format!("T\t{}\n", 40 * site + 4 * sites + 1));
        }
    }
    std::fs::write(folder.join("made.maple"), genomes).unwrap();
    std::fs::write(
        folder.join("net.toml"),
        "socket = \"net.sock\"\n[nic]\nkind = \"tap\"\nname = \"sidecore0\"\n\
         host = [\"10.77.0.1/24\"]\n[stack]\naddresses = [\"10.77.0.2/24\"]\n",
    )
    .unwrap();
    for words in [
        "block pack raw.bin -o made.img",
        "block pack tree -o made-tree.img",
        "block clone made.img kept.ovl",
        "phylo simulate --taxa 6 --sites 60 --model JC --seed 1 -o made.phy --tree-out made.nwk",
    ] {
        let output = command(&folder, words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {said}");
    }
    let made = std::fs::read(folder.join("made.img")).unwrap();
    std::fs::write(folder.join("bad.img"), &made[..made.len() / 2]).unwrap();
    folder
});

/// A recording of one request and the engine that served it.
const EVENTS: &str = r#"{"displayTimeUnit":"ns","otherData":{"writer":"sidecore","records_lost":{}},
"traceEvents":[
{"ph":"M","name":"process_name","pid":7,"tid":7,"args":{"name":"sidecore block serve"}},
{"ph":"M","name":"thread_name","pid":7,"tid":10000001,"args":{"name":"engine 0 (cpu 0)"}},
{"ph":"B","pid":7,"tid":10000001,"ts":10.500,"cat":"engine","name":"call"},
{"ph":"f","pid":7,"tid":10000001,"ts":10.600,"cat":"image","name":"frame","id":"3","bp":"e"},
{"ph":"E","pid":7,"tid":10000001,"ts":90.000},
{"ph":"M","name":"thread_name","pid":7,"tid":8,"args":{"name":"nbd-1-1"}},
{"ph":"B","pid":7,"tid":8,"ts":10.000,"cat":"image","name":"read","args":{"offset":0}},
{"ph":"s","pid":7,"tid":8,"ts":10.400,"cat":"image","name":"frame","id":"3"},
{"ph":"E","pid":7,"tid":8,"ts":95.000}
]}
"#;

/// The folder of the inputs.
pub(crate) fn folder() -> &'static Path {
    &INPUTS
}

/// `sidecore` with these words, in the folder of the inputs, ended after two minutes.
pub(crate) fn sidecore(words: &str) -> Output {
    command(folder(), words).output().unwrap()
}

/// The same, not yet started.
pub(crate) fn command(folder: &Path, words: &str) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", "300", env!("CARGO_BIN_EXE_sidecore")])
        .args(words.split_whitespace())
        .current_dir(folder)
        .env("SIDECORE_SERVERS_DIR", folder.join("servers"))
        .env("SIDECORE_STATE_DIR", folder.join("state"))
        .env("SIDECORE_ZLIB_LIBRARY", zlib())
        .env("SIDECORE_BEAGLE_LIBRARY", beagle())
        .env("SIDECORE_VERBS_LIBRARY", verbs())
        .env("SIDECORE_SPE_CACHE", folder.join("spe"))
        .env("TMPDIR", folder);
    command
}

/// Library that `phylo beagle` preloads.
fn beagle() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libhmsbeagle.so")
}

/// Library that `rdma run` puts in place of libibverbs.
fn verbs() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libsidecore_verbs.so")
}

/// Library that `offload run` preloads: cargo puts it next to the tests, which depend on it.
fn zlib() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libsidecore_z.so")
}
