//! The program as its users see it: one binary, so that it is linked once.
//!
//! `cargo test -p sidecore-cli --test suite NAME::` runs one part. `path_races` is a binary of its
//! own because `scripts/check-path-races` runs it for long.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod bench;
mod benchmarks;
mod commands;
mod daemon;
mod doctor;
mod document;
mod english;
mod far;
mod fits;
mod guest;
mod house;
mod kernels;
mod limits;
mod manners;
mod manual;
mod mount;
#[path = "../../../net/engine/tests/common/namespace.rs"]
mod namespace;
mod net;
mod net_bench;
mod offload;
mod operate;
mod overlay;
mod pack;
mod pages;
mod papers;
mod phylo;
mod phylo_examples;
mod phylo_inputs;
mod phylo_limits;
mod phylo_models;
mod phylo_search;
mod phylo_workflow;
mod release;
mod serve;
mod serve_tls;
#[path = "../../../image/remote/tests/common/server.rs"]
mod server;
mod sessions;
mod shown;
mod spe;
mod store_keys;
mod terminal;
mod threads;
mod tlb;
mod tour;
mod trace;
mod trust;
mod walks;

mod common {
    //! Helpers shared by the tests of benches.

    #![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests.

    use std::path::Path;
    use std::process::Command;

    /// Asserts that a bench refuses each of `cases` at once: exit status 2, the words in its
    /// message, and nothing left in `scratch`.
    pub(crate) fn refused(
        scratch: &Path,
        bench: impl Fn(&[&str]) -> Command,
        cases: &[([&str; 2], &str)],
    ) {
        for (arguments, words) in cases {
            let output = bench(arguments).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
            assert!(errors.contains(words), "{arguments:?}: {errors}");
        }
        assert_eq!(std::fs::read_dir(scratch).unwrap().count(), 0);
    }
}

mod repository {
    //! The repository's text files, read once for all tests that look at them.

    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};
    use std::sync::OnceLock;

    pub(super) fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// Every file outside of `target` and `.git`, by its path from the root; contents that are no
    /// text have replacement characters.
    pub(super) fn files() -> &'static BTreeMap<String, String> {
        static FILES: OnceLock<BTreeMap<String, String>> = OnceLock::new();
        FILES.get_or_init(|| {
            let (root, mut found) = (root(), BTreeMap::new());
            let mut folders = vec![root.clone()];
            while let Some(folder) = folders.pop() {
                for entry in folder.read_dir().expect("a folder of the repository") {
                    let path = entry.expect("an entry").path();
                    let name = path.strip_prefix(&root).expect("below the root");
                    let name = name.to_str().expect("a name in UTF-8").to_owned();
                    // A link may lead to a folder above.
                    if path.is_symlink() || matches!(&*name, "target" | ".git") {
                        continue;
                    }
                    if path.is_dir() {
                        folders.push(path);
                    } else {
                        let bytes = std::fs::read(&path).expect("a readable file");
                        found.insert(name, String::from_utf8_lossy(&bytes).into_owned());
                    }
                }
            }
            found
        })
    }
}

mod serving {
    //! Start of a server: its first line reports that it is ready.
    //!
    //! Why here: every test of a server waits for that line, and shows the server's output instead
    //! if it does not come.
    #![allow(clippy::unwrap_used)] // A helper function of tests.

    use std::io::{BufRead, BufReader, Read};
    use std::process::Child;

    /// Waits for the first line of `child`, whose standard output is piped. If that line is not
    /// `wanted`, waits for the child's end and panics with its output.
    pub(crate) fn until_it_says(child: &mut Child, wanted: &str) {
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        if line != wanted {
            let mut said = String::new();
            if let Some(mut errors) = child.stderr.take() {
                let _ = errors.read_to_string(&mut said);
            }
            let _ = child.kill();
            let _ = child.wait();
            panic!("the server said `{line}` and {said}");
        }
    }
}

mod watching {
    //! Progress of a program that a test started, as the kernel reports it: proc_pid_status(5).
    //!
    //! Why here: a signal that arrives before a program has its handlers ends the program, and the
    //! time until then depends on the machine. A test waits for the handlers, not for some
    //! milliseconds.
    #![allow(clippy::unwrap_used, dead_code)] // Helper functions of tests; each test uses some.

    use std::process::Child;
    use std::time::{Duration, Instant};

    /// Waits until `child` handles Ctrl-C; false if it ended before.
    pub(crate) fn until_it_watches(child: &mut Child) -> bool {
        const SIGINT: u32 = 2;
        let begun = Instant::now();
        loop {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
            let status = status.unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
            if caught & 1 << (SIGINT - 1) != 0 {
                return true;
            }
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(begun.elapsed() < PATIENCE, "it watches for no signal");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The process below `ancestor`, at any depth, whose command line holds `words`, each ended by
    /// a NUL.
    pub(crate) fn descendant(ancestor: u32, words: &str) -> Option<u32> {
        let children = format!("/proc/{ancestor}/task/{ancestor}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        children.split_whitespace().find_map(|id| {
            let line = std::fs::read_to_string(format!("/proc/{id}/cmdline"));
            let id = id.parse().unwrap();
            match line.is_ok_and(|line| line.contains(words)) {
                true => Some(id),
                false => descendant(id, words),
            }
        })
    }

    /// Limit of a wait for an event that must happen.
    const PATIENCE: Duration = Duration::from_secs(120);
}
