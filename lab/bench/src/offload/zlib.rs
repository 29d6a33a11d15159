//! Programs that use zlib, with the system's and with the preloaded library.
//!
//! Why here: it shows the gain of `sidecore offload run --` in front of a command.
//! Must stay true: both candidates are the same program on the same file, in turns; each output is
//! decompressed by the other one and compared; a daemon's processor time is counted with its
//! client's. Processes are placed by the kernel: while engines work, their client sleeps.
//! One thread. Source: own.

use super::{Bench, BenchError, Candidate};
use crate::measure::child::{Speaker, tool};
use crate::measure::report::{Better, Comparison};
use sidecore_sys::preload::Library;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Measures all ways, then whole programs.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let library = match LIBRARY.find() {
        Ok(library) => library,
        Err(reason) => {
            bench.missing(&reason.to_string());
            return Ok(());
        }
    };
    let folder = bench.config.scratch.clone();
    let timer = match timer(&folder) {
        Ok(timer) => timer,
        Err(reason) => {
            bench.missing(&reason);
            return Ok(());
        }
    };
    let corpus = folder.join("corpus");
    let raw_bytes = make_corpus(&corpus, bench.choose(3 << 20, CORPUS_BYTES))?;
    let system = Setting::default();
    let here = Setting {
        library: Some(library.clone()),
        ..Setting::default()
    };
    // The inputs of the ways that decompress.
    for (stream, setting) in [("system.z", &system), ("own.z", &here)] {
        setting.time(&timer, "compress", LEVEL, &corpus, &folder.join(stream))?;
    }
    let cores = bench.cpus.len();
    let mut settings = vec![("the caller".to_owned(), here)];
    for engines in 1..=cores.min(2) {
        let socket = folder.join(format!("zlib-{engines}.sock"));
        let count = engines.to_string();
        let mut command = Command::new(&bench.config.sidecore);
        // A short grace: a daemon must not poll while another setting is measured.
        command.args(["daemon", "--grace-ms", "1", "--engines", &count, "--socket"]);
        let mut daemon = Speaker::spawn(command.arg(&socket))?;
        daemon.line(&bench.cancel)?;
        let plural = if engines == 1 { "" } else { "s" };
        let setting = Setting {
            library: Some(library.clone()),
            daemon: Some((daemon, socket)),
        };
        settings.push((format!("{engines} engine{plural}"), setting));
    }
    for way in &WAYS {
        compare(bench, &timer, &folder, raw_bytes, &system, &settings, way)?;
    }
    whole_programs(bench, &folder, &library)
}

/// One way of using zlib.
struct Way {
    /// The timing program's word for it.
    name: &'static str,
    /// Input, and its name in the row.
    input: &'static str,
    title: &'static str,
    /// The target ratio: on the caller or one engine, and on two.
    wanted: [f64; 2],
    /// True where engines take part.
    engines: bool,
}

const WAYS: [Way; 6] = [
    Way {
        name: "compress",
        input: "corpus",
        title: "compress2, level 6",
        wanted: [2.0, 3.5],
        engines: true,
    },
    Way {
        name: "deflate",
        input: "corpus",
        title: "deflate, level 6, 64 KiB a call",
        wanted: [2.0, 3.5],
        engines: true,
    },
    Way {
        name: "uncompress",
        input: "own.z",
        title: "uncompress, our own stream",
        wanted: [3.0, 3.0],
        engines: false,
    },
    Way {
        name: "uncompress",
        input: "system.z",
        title: "uncompress, zlib's stream",
        wanted: [2.0, 2.0],
        engines: false,
    },
    Way {
        name: "inflate",
        input: "own.z",
        title: "inflate, our own stream, 64 KiB a call",
        wanted: [3.0, 3.0],
        engines: false,
    },
    Way {
        name: "inflate",
        input: "system.z",
        title: "inflate, zlib's stream, 64 KiB a call",
        wanted: [2.0, 2.0],
        engines: false,
    },
];

/// A library and where its blocks are made.
#[derive(Default)]
struct Setting {
    /// None: the system's.
    library: Option<PathBuf>,
    daemon: Option<(Speaker, PathBuf)>,
}

/// Cost of one run.
struct Cost {
    wall_s: f64,
    /// Of the program and of the engines that served it.
    processor_s: f64,
    output_bytes: u64,
}

impl Setting {
    fn prepare(&self, command: &mut Command) {
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        match &self.daemon {
            Some((_, socket)) => command.env("SIDECORE_ZLIB_SOCKET", socket),
            None => command.env("SIDECORE_ZLIB", "local"),
        };
    }

    fn time(
        &self,
        timer: &Path,
        way: &str,
        level: u32,
        input: &Path,
        output: &Path,
    ) -> Result<Cost, BenchError> {
        let mut command = Command::new(timer);
        command
            .arg(way)
            .arg(level.to_string())
            .arg(input)
            .arg(output);
        self.prepare(&mut command);
        // The engines' work is part of the program's cost.
        let served_ns = || {
            self.daemon
                .as_ref()
                .map_or(0, |(daemon, _)| daemon.cpu_ns())
        };
        let before_ns = served_ns();
        let said = output_of(&mut command)?;
        let served_ns = served_ns().saturating_sub(before_ns);
        let mut numbers = said.split_whitespace().map(str::parse::<f64>);
        let mut next = || match numbers.next() {
            Some(Ok(number)) => Ok(number),
            _ => Err(BenchError::Wrong(format!("{way} said {said:?}"))),
        };
        Ok(Cost {
            wall_s: next()? / 1e9,
            processor_s: (next()? + served_ns as f64) / 1e9,
            output_bytes: next()? as u64,
        })
    }
}

/// One way with the system's library and with each setting of ours, interleaved.
fn compare(
    bench: &mut Bench<'_>,
    timer: &Path,
    folder: &Path,
    raw_bytes: u64,
    system: &Setting,
    settings: &[(String, Setting)],
    way: &Way,
) -> Result<(), BenchError> {
    let megabytes = raw_bytes as f64 / 1e6;
    let input = folder.join(way.input);
    let ours = if way.engines {
        settings
    } else {
        &settings[..1]
    };
    let all = [(SYSTEM, system)].into_iter();
    let all: Vec<(&str, &Setting)> = all
        .chain(ours.iter().map(|(name, setting)| (name.as_str(), setting)))
        .collect();
    let outputs: Vec<PathBuf> = (0..all.len())
        .map(|n| folder.join(format!("out-{n}")))
        .collect();
    let mut candidates: Vec<Candidate<'_>> = all
        .iter()
        .zip(&outputs)
        .map(|(&(name, setting), output)| {
            let input = &input;
            Candidate::new(name, move |()| {
                let cost = setting.time(timer, way.name, LEVEL, input, output)?;
                Ok(vec![
                    megabytes / cost.wall_s,
                    megabytes / cost.processor_s,
                    cost.output_bytes as f64,
                ])
            })
        })
        .collect();
    bench.say(way.title);
    let metrics = [
        (way.title, "MB/s"),
        ("of processor time", "MB/s"),
        ("output", "bytes"),
    ];
    let rounds = bench.choose(2, 7);
    let series = bench.interleave(&metrics, rounds, &mut candidates)?;
    drop(candidates);
    let back = folder.join("back");
    for output in &outputs {
        // Compressed outputs differ, so they are compared after decompression.
        if way.input == "corpus" {
            system.time(timer, "uncompress", LEVEL, output, &back)?;
        } else {
            std::fs::copy(output, &back).map_err(io("copy an output"))?;
        }
        if read(&back)? != read(&folder.join("corpus"))? {
            return Err(BenchError::Wrong(format!(
                "{}: other bytes came back",
                way.title
            )));
        }
    }
    let Some(Some(theirs)) = series.first() else {
        return Ok(());
    };
    for ((name, _), series) in ours.iter().zip(&series[1..]) {
        let Some(series) = series else { continue };
        // The second target is that of two engines.
        let wanted = if name.starts_with('2') {
            way.wanted[1]
        } else {
            way.wanted[0]
        };
        let kinds = [
            (
                format!("{}, {name}", way.title),
                "MB/s",
                Better::Higher,
                Some(wanted),
            ),
            (
                format!("{}, {name}: per second of processor", way.title),
                "MB/s",
                Better::Higher,
                None,
            ),
            (
                format!("{}, {name}: size", way.title),
                "bytes",
                Better::Lower,
                Some(1.01),
            ),
        ];
        // A way that decompresses has no size to compare.
        let sized = if way.input == "corpus" { 3 } else { 2 };
        for ((metric, unit, better, target), index) in kinds.into_iter().zip(0..sized) {
            let what = Comparison {
                group: "zlib",
                name: SYSTEM,
                metric: &metric,
                unit,
                better,
                target,
                note: "",
            };
            bench
                .report
                .figures
                .compare(&what, &series[index], &theirs[index]);
        }
    }
    Ok(())
}

/// Whole programs before and after: wall seconds.
fn whole_programs(bench: &mut Bench<'_>, folder: &Path, library: &Path) -> Result<(), BenchError> {
    let gzip =
        "import gzip,sys; gzip.open(sys.argv[2],'wb',6).write(open(sys.argv[1],'rb').read())";
    let repository = folder.join("repository");
    let has_git = tool("git", &[]).is_ok() && make_repository(&repository, folder).is_ok();
    let programs: [(&str, &str, Vec<&str>, bool); 2] = [
        (
            "Python's gzip, level 6",
            "python3",
            vec!["-c", gzip, "corpus", "corpus.gz"],
            tool("python3", &[]).is_ok(),
        ),
        (
            "git repack -adFq",
            "git",
            vec![
                "-C",
                "repository",
                "-c",
                "pack.threads=1",
                "repack",
                "-adFq",
            ],
            has_git,
        ),
    ];
    for (title, program, arguments, is_there) in programs {
        if !is_there {
            bench.missing(&format!("zlib: {program} is missing"));
            continue;
        }
        let one = |preloaded: bool| {
            let mut command = Command::new(program);
            command.args(&arguments).current_dir(folder);
            // Without a daemon: the gain of the library alone.
            command.env("SIDECORE_ZLIB", "local");
            if preloaded {
                command.env("LD_PRELOAD", library);
            }
            let begun = std::time::Instant::now();
            output_of(&mut command)?;
            Ok(vec![begun.elapsed().as_secs_f64()])
        };
        let mut candidates = [
            Candidate::new(SYSTEM, |()| one(false)),
            Candidate::new("the caller", |()| one(true)),
        ];
        bench.say(title);
        let rounds = bench.choose(2, 7);
        let series = bench.interleave(&[(title, "s")], rounds, &mut candidates)?;
        if let [Some(theirs), Some(ours)] = series.as_slice() {
            let what = Comparison {
                group: "zlib",
                name: SYSTEM,
                metric: title,
                unit: "s",
                better: Better::Lower,
                target: None,
                note: "no daemon",
            };
            bench.report.figures.compare(&what, &ours[0], &theirs[0]);
        }
    }
    Ok(())
}

/// A repository with the corpus in pieces of 100 KB.
fn make_repository(repository: &Path, folder: &Path) -> Result<(), BenchError> {
    std::fs::create_dir_all(repository).map_err(io("make a repository"))?;
    for (index, piece) in read(&folder.join("corpus"))?.chunks(100_000).enumerate() {
        let path = repository.join(format!("file-{index}"));
        std::fs::write(path, piece).map_err(io("make a repository"))?;
    }
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
        output_of(command.args(arguments).current_dir(repository)).map(|_| ())
    };
    git(&["init", "-q"])?;
    git(&["add", "."])?;
    git(&["commit", "-q", "-m", "all"])
}

/// The timing program, compiled.
fn timer(folder: &Path) -> Result<PathBuf, String> {
    let (source, program) = (folder.join("zlib.c"), folder.join("zlib-timer"));
    std::fs::write(&source, include_str!("../../peers/zlib.c"))
        .map_err(|error| error.to_string())?;
    let mut command = tool("cc", &[("cc", "gcc")])?;
    command
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-lz");
    match command.output() {
        Ok(output) if output.status.success() => Ok(program),
        _ => Err("zlib's header is missing (zlib1g-dev)".to_owned()),
    }
}

/// Files of this machine, documents, headers and programs in equal parts; returns the bytes.
fn make_corpus(path: &Path, bytes: u64) -> Result<u64, BenchError> {
    let mut corpus = Vec::new();
    for (part, folder) in (1..).zip(FOLDERS) {
        let wanted = bytes as usize * part / FOLDERS.len();
        let mut folders = vec![PathBuf::from(folder)];
        while let Some(folder) = folders.pop() {
            let mut entries: Vec<_> = std::fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect();
            // The order within a directory depends on the file system.
            entries.sort();
            for entry in entries {
                let Ok(kind) = entry.symlink_metadata() else {
                    continue;
                };
                if kind.is_dir() {
                    folders.push(entry);
                } else if kind.is_file() && corpus.len() < wanted {
                    let file = std::fs::read(&entry).unwrap_or_default();
                    let room = (wanted - corpus.len()).min(FILE_BYTES_MAX);
                    corpus.extend(&file[..file.len().min(room)]);
                }
            }
            if corpus.len() >= wanted {
                break;
            }
        }
    }
    std::fs::write(path, &corpus).map_err(io("write the corpus"))?;
    Ok(corpus.len() as u64)
}

fn output_of(command: &mut Command) -> Result<String, BenchError> {
    let output = command.output().map_err(io("run a program"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(BenchError::Wrong(format!(
            "{command:?}: {}",
            said.trim_end()
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, BenchError> {
    std::fs::read(path).map_err(io("read an output"))
}

fn io(what: &'static str) -> impl Fn(std::io::Error) -> BenchError {
    move |source| BenchError::Io {
        what: what.into(),
        source,
    }
}

const LIBRARY: Library = Library {
    name: "libsidecore_z.so",
    installed_name: None,
    variable: "SIDECORE_ZLIB_LIBRARY",
};
const SYSTEM: &str = "system's zlib";
const LEVEL: u32 = 6;
const CORPUS_BYTES: u64 = 30_000_000;
const FILE_BYTES_MAX: usize = 1 << 20;
const FOLDERS: [&str; 3] = ["/usr/share/doc", "/usr/include", "/usr/bin"];
