//! Commands on paths that another user changes: before each of their calls that takes a path, a
//! component of it becomes a link, a folder, a file, a pipe, or nothing, and later itself again.
//!
//! Must stay true: no byte and no name of a file that only root reads comes into the output of a
//! command; no file of root's outside is changed, made or removed; no command hangs. Needs root,
//! for the other user. `scripts/check-path-races` runs it longer: `SIDECORE_PATH_RACES` is the
//! number of exchanges, of all commands together, `SIDECORE_PATH_RACES_SEED` the seed.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // A test's helpers may fail it too.

mod attacker;
#[path = "../../../image/remote/tests/common/server.rs"]
mod server;
mod tracer;

use attacker::{Attacker, UID};
use server::Server;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tracer::End;

/// A command, and its requirements. In its arguments `$HOME` is the other user's folder, `$ROOT`
/// one of root's with inputs and outputs.
struct Scenario {
    name: &'static str,
    words: &'static str,
    /// The variable that names a folder, and the folder.
    variable: Option<(&'static str, &'static str)>,
    /// Programs without which it is left out.
    needs: &'static str,
    /// True if it may wait for a pipe in a file's place: foreign programs open files without a
    /// check.
    without_pipes: bool,
}

const SCENARIO: Scenario = Scenario {
    name: "",
    words: "",
    variable: None,
    needs: "",
    without_pipes: false,
};

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "pack a tree",
        words: "block pack $HOME/tree -o $ROOT/out.img --engines 1",
        ..SCENARIO
    },
    Scenario {
        name: "pack a tree by mksquashfs",
        words: "block pack $HOME/tree -o $ROOT/out.img --inner squashfs --engines 1",
        needs: "mksquashfs",
        without_pipes: true,
        ..SCENARIO
    },
    Scenario {
        name: "pack a tree by mkfs.ext4",
        words: "block pack $HOME/tree -o $ROOT/out.img --inner ext4 --engines 1",
        needs: "mkfs.ext4",
        without_pipes: true,
        ..SCENARIO
    },
    Scenario {
        name: "pack a file",
        words: "block pack $HOME/disk -o $ROOT/out.img --engines 1",
        ..SCENARIO
    },
    Scenario {
        name: "pack into the other user's folder",
        words: "block pack $ROOT/disk -o $HOME/out/out.img --engines 1",
        ..SCENARIO
    },
    Scenario {
        name: "unpack into it",
        words: "block unpack $ROOT/disk.img -o $HOME/out/raw --engines 1",
        ..SCENARIO
    },
    Scenario {
        name: "an overlay in it",
        words: "block clone $ROOT/disk.ovl $HOME/out/new.ovl",
        ..SCENARIO
    },
    Scenario {
        name: "an index in it",
        words: "block index $ROOT/many.zst -o $HOME/out/many.sidx --engines 1",
        ..SCENARIO
    },
    Scenario {
        name: "a cache in it",
        words: "block verify $URL --cache $HOME/cache --cache-size 64KiB --engines 1",
        ..SCENARIO
    },
    Scenario {
        name: "the state of mounts in it",
        words: "block umount $ROOT/nothing",
        variable: Some(("SIDECORE_STATE_DIR", "state/block")),
        ..SCENARIO
    },
    Scenario {
        name: "a search's results and checkpoint in it",
        words: "phylo search --msa $ROOT/m.fa --model JC --starts 1 --engines 1 \
                --prefix $HOME/out/o",
        ..SCENARIO
    },
];

struct Place {
    directory: tempfile::TempDir,
    server: Server,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        let root = path.join("root");
        fs::create_dir(&root).unwrap();
        let text: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(root.join("disk"), &text).unwrap();
        fs::write(root.join("many.zst"), zstd(&text)).unwrap();
        fs::write(root.join("m.fa"), ALIGNMENT).unwrap();
        let made = Self {
            directory,
            server: Server::start(Vec::new()),
        };
        made.sidecore(&["block", "pack", "disk", "-o", "disk.img"]);
        made.sidecore(&["block", "clone", "disk.img", "disk.ovl"]);
        let image = fs::read(root.join("disk.img")).unwrap();
        Self {
            server: Server::start(image),
            ..made
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs it in root's folder, undisturbed.
    fn sidecore(&self, words: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        let output = command.args(words).current_dir(self.path("root")).output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}");
    }

    /// The other user's folder, and root's private files, with the same names in it.
    fn begin(&self) {
        for name in ["home", "secrets"] {
            let _ = fs::remove_dir_all(self.path(name));
        }
        for (name, mode, text) in [("home", 0o755, "theirs"), ("secrets", 0o700, SECRET)] {
            let top = self.path(name);
            for folder in [
                "tree/a/b",
                "tree/c",
                "out",
                "cache/tmp",
                "cache/00",
                "state/block/0",
            ] {
                fs::create_dir_all(top.join(folder)).unwrap();
            }
            for file in [
                "tree/1",
                "tree/a/2",
                "tree/a/b/3",
                "tree/c/4",
                "tree/z",
                "disk",
            ] {
                fs::write(top.join(file), text.repeat(300)).unwrap();
            }
            fs::set_permissions(&top, fs::Permissions::from_mode(mode)).unwrap();
        }
        // Names that lead nowhere in the other user's folder, and to a file in root's.
        for name in [
            "tree/secret",
            "out/out.img",
            "out/raw",
            "out/new.ovl",
            "out/many.sidx",
            "out/o.bestTree",
            "out/o.ckp",
        ]
        .into_iter()
        .chain(["cache/lock", "state/block/lock"])
        {
            fs::write(self.path("secrets").join(name), SECRET).unwrap();
        }
        let home = self.path("home");
        let _ = fs::remove_dir_all(home.join("cache"));
        symlink("1", home.join("tree/link")).unwrap();
        each(&home, &mut |path, _| {
            std::os::unix::fs::lchown(path, Some(UID), Some(UID)).unwrap();
        });
        chown(&home, Some(UID), Some(UID)).unwrap();
    }

    fn command(&self, scenario: &Scenario) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        for word in scenario.words.split(' ') {
            command.arg(self.filled(word));
        }
        if let Some((name, folder)) = scenario.variable {
            command.env(name, self.path("home").join(folder));
        }
        let file = |name| fs::File::create(self.path("root").join(name)).unwrap();
        command.stdout(file("stdout")).stderr(file("stderr"));
        command.stdin(std::process::Stdio::null());
        command.current_dir(self.path("root"));
        command
    }

    fn filled(&self, word: &str) -> String {
        word.replace("$HOME", self.path("home").to_str().unwrap())
            .replace("$ROOT", self.path("root").to_str().unwrap())
            .replace("$URL", &self.server.url())
    }

    /// Faults of a run, in words.
    fn faults(&self, before: &BTreeMap<PathBuf, String>, end: &End) -> Vec<String> {
        let mut faults = Vec::new();
        if !matches!(end, End::Exit(0..=2)) {
            faults.push(format!("it ended with {end:?}"));
        }
        let after = self.snapshot();
        for (path, found) in &after {
            if before.get(path) != Some(found) {
                faults.push(format!("{} is {found} now", path.display()));
            }
        }
        for path in before.keys().filter(|path| !after.contains_key(*path)) {
            faults.push(format!("{} is gone", path.display()));
        }
        for place in ["home", "root"] {
            each(&self.path(place), &mut |path, metadata| {
                if metadata.is_file() && holds_secret(path) {
                    faults.push(format!("{} holds the secret", path.display()));
                }
            });
        }
        let image = self.path("root/out.img");
        if image.exists() {
            self.sidecore(&["block", "unpack", "out.img", "-o", "out.raw"]);
            if holds_secret(&self.path("root/out.raw")) {
                faults.push("the image holds the secret".to_owned());
            }
        }
        for name in ["out.img", "out.raw"] {
            let _ = fs::remove_file(self.path("root").join(name));
        }
        faults
    }

    /// Root's files, which nothing may change.
    fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        each(&self.path("secrets"), &mut |path, metadata| {
            let contents = metadata.is_file().then(|| fs::read(path).unwrap().len());
            let (mode, uid) = (metadata.mode(), metadata.uid());
            let changed = (metadata.mtime(), metadata.mtime_nsec());
            found.insert(
                path.to_owned(),
                format!("mode {mode:o}, user {uid}, {contents:?} bytes, changed {changed:?}"),
            );
        });
        found
    }
}

/// Calls `visit` with everything below a folder. No link is followed.
fn each(folder: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        visit(&entry.path(), &metadata);
        if metadata.is_dir() {
            each(&entry.path(), visit);
        }
    }
}

fn holds_secret(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap_or_default();
    let wanted = SECRET.as_bytes();
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let piece = |piece: &[u8]| {
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(piece.len()));
        zstd_safe::compress(&mut out, piece, 1).unwrap();
        out
    };
    bytes.chunks(50_000).flat_map(piece).collect()
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    program.is_empty() || folders.any(|folder| folder.join(program).exists())
}

/// Runs a scenario until this many exchanges were made; returns all faults.
fn race(place: &Place, scenario: &Scenario, swaps: u64, seed: u64) -> (u64, Vec<String>) {
    let home = place.path("home");
    place.begin();
    // An undisturbed run lists the calls from which the disturbed ones are drawn.
    let mut calls = 0;
    let end = tracer::run(place.command(scenario), &mut |paths| {
        calls += u64::from(paths.iter().any(|path| path.starts_with(&home)));
    });
    assert!(
        calls > 0,
        "{}: {end:?}, no call names the folder",
        scenario.name
    );
    let _ = fs::remove_file(place.path("root/out.img"));
    let mut attacker = Attacker::new(&home, &place.path("secrets"), seed);
    attacker.with_pipes = !scenario.without_pipes;
    let mut faults = Vec::new();
    let mut runs = 0;
    while attacker.swaps < swaps {
        runs += 1;
        assert!(
            runs < 100 || attacker.swaps > 0,
            "{}: nothing can be exchanged",
            scenario.name
        );
        place.begin();
        let before = place.snapshot();
        // Before some calls in a row; for good, or until the next call.
        let first = attacker.draw(calls);
        let last = first + attacker.draw(6);
        let stays = attacker.draw(2) == 0;
        let mut call = 0;
        let end = tracer::run(place.command(scenario), &mut |paths| {
            let Some(path) = paths.iter().find(|path| path.starts_with(&home)) else {
                return;
            };
            if !stays && (first..=last + 1).contains(&call) {
                attacker.swap_back();
            }
            if (first..=last).contains(&call) {
                attacker.swap(path);
            }
            call += 1;
        });
        attacker.forget();
        for fault in place.faults(&before, &end) {
            faults.push(format!(
                "{} (seed {seed}, run {runs}): {fault}",
                scenario.name
            ));
        }
        if faults.len() > 20 {
            break;
        }
    }
    (attacker.swaps, faults)
}

#[test]
fn nothing_of_roots_is_read_or_written_for_who_exchanges_paths() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root, for another user");
        return;
    }
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|it| it.parse::<u64>().ok())
    };
    let swaps = number("SIDECORE_PATH_RACES").unwrap_or(QUICK_SWAPS);
    let seed = number("SIDECORE_PATH_RACES_SEED").unwrap_or(1);
    let only = std::env::var("SIDECORE_PATH_RACES_ONLY").unwrap_or_default();
    let place = Place::new();
    let chosen = SCENARIOS
        .iter()
        .filter(|it| is_there(it.needs) && it.name.contains(&only));
    let chosen: Vec<&Scenario> = chosen.collect();
    let (mut all, mut findings) = (0, Vec::new());
    for scenario in &chosen {
        let share = swaps.div_ceil(chosen.len() as u64);
        let (made, faults) = race(&place, scenario, share, seed);
        println!(
            "{:36} {made:>6} exchanges, {} findings",
            scenario.name,
            faults.len()
        );
        all += made;
        findings.extend(faults);
    }
    println!("{all} exchanges, {} findings; seed {seed}", findings.len());
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

const ALIGNMENT: &str = ">a\nACGTACGTAC\n>b\nACGTACGTAA\n>c\nACGAACGTCC\n>d\nACGAACCTCC\n";
const SECRET: &str = "TOPSECRET-of-root-alone\n";
/// Exchanges of a test among others; `scripts/check-path-races` makes 10,000 and more.
const QUICK_SWAPS: u64 = 220;
