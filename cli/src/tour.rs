//! `sidecore tour`: the main job, end to end, on this machine's own files.
//!
//! Why here: one command shows a newcomer the main commands. Each is printed before it runs, and
//! runs as this program itself.
//! Must stay true: nothing is skipped silently, all effects are undone also when a step fails, and
//! the exit status is 1 if any step failed.

use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result, bail};
use sidecore_sys::{cpu, program};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Arguments of `tour`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A smaller directory and fewer steps: half a minute
    #[arg(long)]
    quick: bool,
    /// The directory to pack [default: the largest of this system's below 192 MiB, with --quick 32
    /// MiB]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// External programs that the tour needs, with their steps.
const TOOLS: [(&str, &str); 9] = [
    ("diff", "comparing the mounted tree"),
    ("zstd", "unpacking an image without Sidecore"),
    ("nbdcopy", "reading it over NBD"),
    ("openssl", "a key to sign an image with"),
    ("busybox", "a web server to read it from"),
    ("gcc", "building a program of the Cell"),
    ("ip", "a network of the tour's own"),
    ("ping", "asking the stack from the kernel"),
    ("nc", "talking to the stack from the kernel"),
];

/// Longest time that a server may take to accept.
const READY_WAIT: Duration = Duration::from_secs(20);

impl Args {
    /// Runs the tour.
    pub(crate) fn run(self) -> Result<Outcome> {
        for (tool, purpose) in TOOLS {
            if program::find(tool).is_none() {
                bail!("`{tool}` is missing ({purpose}); run scripts/setup, then this again");
            }
        }
        let directory = match &self.dir {
            Some(directory) => directory.clone(),
            None => self.choose()?,
        };
        let shown = directory.display();
        if !directory.is_dir() {
            bail!("there is no directory {shown} to pack; name another with --dir");
        }
        let scratch = tempfile::Builder::new()
            .prefix("sidecore-tour-")
            .tempdir()?;
        let program = std::env::current_exe().context("cannot find this program")?;
        prepare(scratch.path(), &program)?;
        let [starts, bootstraps, mib] = match self.quick {
            true => ["1", "10", "200"],
            false => ["4", "50", "2000"],
        };
        let variables = [
            ("dir", text(&directory)?),
            ("tmp", text(scratch.path())?),
            ("sidecore", text(&program)?),
            ("starts", starts),
            ("bootstraps", bootstraps),
            ("mib", mib),
        ];
        let mut tour = Tour {
            variables: variables
                .map(|(name, value)| (name, value.to_owned()))
                .into(),
            program,
            scratch: scratch.path().to_owned(),
            printed: String::new(),
            failed: Vec::new(),
            namespace: None,
            servers: Vec::new(),
            interrupted: raise_on(&[SIGINT, SIGTERM])?,
            steps: Vec::new(),
        };
        say(&format!(
            "Sidecore's tour: {} cores, {}, everything in {}",
            cpu::allowed().map_or(1, |cpus| cpus.len()),
            shown,
            scratch.path().display()
        ))?;
        let steps = STEPS.split("\n== ").skip(1);
        let result = steps
            .filter_map(|step| wanted(step, self.quick))
            .try_for_each(|step| tour.take(step));
        tour.finish(result)
    }

    /// The largest directory of programs and documents that is packed within the tour's time.
    fn choose(&self) -> Result<PathBuf> {
        let most_bytes = if self.quick { 32 << 20 } else { 192 << 20 };
        let mut sizes: Vec<(u64, &str)> = CANDIDATES
            .iter()
            .filter(|path| Path::new(path).is_dir())
            .map(|path| (bytes_under(Path::new(path), most_bytes), *path))
            .collect();
        sizes.sort();
        let fits = sizes.iter().rfind(|(bytes, _)| *bytes <= most_bytes);
        match fits.or(sizes.first()) {
            Some((_, path)) => Ok(PathBuf::from(path)),
            None => bail!(
                "none of {} is here; name one with --dir",
                CANDIDATES.join(", ")
            ),
        }
    }
}

/// A step, unless it is one of the whole tour's or of a program's with benches, and this is not.
fn wanted(step: &'static str, quick: bool) -> Option<&'static str> {
    let (condition, rest) = match step.strip_prefix('?') {
        Some(step) => step.split_once(' ')?,
        None => ("", step),
    };
    let holds = match condition {
        "full" => !quick,
        "bench" => cfg!(feature = "bench"),
        _ => true,
    };
    holds.then_some(rest)
}

/// Makes the files that the steps name.
fn prepare(scratch: &Path, program: &Path) -> Result<()> {
    for folder in ["mnt", "www"] {
        std::fs::create_dir(scratch.join(folder))?;
    }
    let socket = scratch.join("net.sock");
    let config = format!("socket = \"{}\"\n{NET_CONFIG}", text(&socket)?);
    output::file(&scratch.join("net.toml"), &config)?;
    output::file(&scratch.join("tour_spu.c"), include_str!("tour/tour_spu.c"))?;
    output::file(&scratch.join("tour.c"), include_str!("tour/tour_host.c"))?;
    // An engine's arena holds input and output: 64 MiB of the program are enough for it.
    let mut part = std::fs::File::create(scratch.join("part.bin"))?;
    std::io::copy(&mut std::fs::File::open(program)?.take(64 << 20), &mut part)?;
    Ok(())
}

struct Tour {
    program: PathBuf,
    scratch: PathBuf,
    /// Values of the names in braces.
    variables: BTreeMap<&'static str, String>,
    /// The last output of this program.
    printed: String,
    failed: Vec<String>,
    /// Network namespace in which commands run; none for the machine's own.
    namespace: Option<Namespace>,
    /// Servers of the step.
    servers: Vec<Server>,
    /// Set by SIGINT and SIGTERM; a running child gets the signal from the terminal itself.
    interrupted: Arc<AtomicBool>,
    /// Steps that were begun.
    steps: Vec<Step>,
}

/// A step, and how it went.
struct Step {
    /// Statement that the step proves if nothing failed.
    proves: &'static str,
    begun: Instant,
    /// Number of problems before it began.
    failed_before: usize,
}

/// A network namespace that ends with the tour.
struct Namespace(String);

impl Namespace {
    fn new() -> Result<Self> {
        let name = format!("sidecore-tour-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output()?;
        let said = String::from_utf8_lossy(&made.stderr);
        anyhow::ensure!(
            made.status.success(),
            "cannot make a network namespace: {}",
            said.trim()
        );
        Ok(Self(name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.0])
            .output();
    }
}

/// A server that ends with the tour.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

impl Tour {
    /// Takes a step: its title, its statement, its lines.
    fn take(&mut self, step: &'static str) -> Result<()> {
        let mut lines = step.lines().filter(|line| !line.is_empty());
        let title = lines.next().unwrap_or_default();
        self.step(title, lines.next().unwrap_or_default())?;
        let mut result = Ok(ControlFlow::Continue(()));
        for line in lines {
            let (line, always) = match line.strip_prefix("! ") {
                Some(line) => (line, true),
                None => (line, false),
            };
            match &result {
                Ok(ControlFlow::Continue(())) => result = self.line(line),
                // What was mounted or attached is undone; the first error is the step's.
                Err(_) if always => _ = self.line(line),
                _ => {}
            }
        }
        // A stack's applications end before the stack.
        while let Some(server) = self.servers.pop() {
            drop(server);
        }
        self.namespace = None;
        result.map(|_| ())
    }

    /// Does a line of a step; `Break` where the rest of it cannot be seen here.
    fn line(&mut self, line: &'static str) -> Result<ControlFlow<()>> {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<String> = rest.split(' ').map(|word| self.filled(word)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match (first, words.as_slice()) {
            ("sidecore", arguments) => self.sidecore(arguments)?,
            ("&", ["sidecore", arguments @ ..]) => self.serve(arguments)?,
            ("&", [name, arguments @ ..]) => self.start(name, arguments)?,
            ("sh" | "bash", _) => self.tool(first, &["-c", &self.filled(rest)])?,
            ("wait", [address]) => wait_for(address)?,
            ("port", _) => _ = self.variables.insert(rest, free_address()?),
            ("namespace", _) => self.namespace = Some(Namespace::new()?),
            ("root", _) if rustix::process::geteuid().is_root() => {}
            ("root", _) => {
                self.fail(rest)?;
                return Ok(ControlFlow::Break(()));
            }
            ("json", [key, number, ..]) => {
                let printed: serde_json::Value = serde_json::from_str(&self.printed)?;
                if printed[*key].as_u64() != number.parse().ok() {
                    self.fail(rest.splitn(3, ' ').last().unwrap_or_default())?;
                }
            }
            (name, ["=", "sidecore", arguments @ ..]) => {
                self.sidecore(arguments)?;
                let printed = self.printed.trim().to_owned();
                self.variables.insert(name, printed);
            }
            (name, arguments) => self.tool(name, arguments)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A line's words with the names in braces replaced; other braces stay.
    fn filled(&self, words: &str) -> String {
        let fill = |text: String, (name, value): (&&str, &String)| {
            text.replace(&format!("{{{name}}}"), value)
        };
        self.variables.iter().fold(words.to_owned(), fill)
    }

    /// A command, in the place where the tour's commands run at the moment.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match &self.namespace {
            None => Command::new(program),
            Some(Namespace(name)) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command
            }
        }
    }

    /// Begins the next step; an interrupted tour ends before it.
    fn step(&mut self, title: &'static str, proves: &'static str) -> Result<()> {
        self.go_on()?;
        self.steps.push(Step {
            proves,
            begun: Instant::now(),
            failed_before: self.failed.len(),
        });
        say(&format!("\n{}. {title}", self.steps.len()))
    }

    /// Prints the statement that each step has proved, and its duration.
    fn sum_up(&self) -> Result<()> {
        let end = Instant::now();
        let ends = self.steps.iter().skip(1);
        let ends = ends.map(|next| (next.begun, next.failed_before));
        let ends = ends.chain([(end, self.failed.len())]);
        let total = self.steps.first().map_or(0.0, |first| {
            end.saturating_duration_since(first.begun).as_secs_f64()
        });
        say(&format!("\nWhat was seen, in {total:.0} s:"))?;
        for (number, (step, (end, failed))) in self.steps.iter().zip(ends).enumerate() {
            let seconds = end.saturating_duration_since(step.begun).as_secs_f64();
            let seen = match failed == step.failed_before {
                true => step.proves,
                false => "PROBLEM, see above",
            };
            let number = number + 1;
            say(&format!("  {number:>2}. {seconds:>5.1} s  {seen}"))?;
        }
        Ok(())
    }

    /// Between two steps: an interrupted tour ends here, with everything undone.
    fn go_on(&self) -> Result<()> {
        anyhow::ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    /// Runs this program, showing the command and what it prints.
    fn sidecore(&mut self, args: &[&str]) -> Result<()> {
        say(&format!("$ sidecore {}", args.join(" ")))?;
        let begun = Instant::now();
        let output = self.command(&self.program).args(args).output()?;
        self.printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        for line in self.printed.lines().chain(errors.lines()) {
            say(&format!("  {line}"))?;
        }
        if !output.status.success() {
            bail!("`sidecore {}` ended with {}", args.join(" "), output.status);
        }
        say(&format!("  ({})", seconds(begun)))
    }

    /// Runs a foreign program; its failure is noted, and the tour goes on.
    fn tool(&mut self, name: &str, args: &[&str]) -> Result<()> {
        say(&format!("$ {name} {}", args.join(" ")))?;
        let begun = Instant::now();
        let output = self
            .command(name)
            .args(args)
            .stdin(Stdio::null())
            .output()?;
        // An interrupted step did not fail, and no further step begins; the caller cleans up.
        self.go_on()?;
        let printed = [output.stdout, output.stderr].concat();
        for line in String::from_utf8_lossy(&printed).lines().take(LINES_MAX) {
            say(&format!("  {line}"))?;
        }
        if output.status.success() {
            say(&format!("  ok ({})", seconds(begun)))
        } else {
            self.fail(&format!("`{name}` ended with {}", output.status))
        }
    }

    /// Starts a server and waits for its `ready`.
    fn serve(&mut self, args: &[&str]) -> Result<()> {
        say(&format!("$ sidecore {} &", args.join(" ")))?;
        let mut child = self
            .command(&self.program)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("no output of the server")?;
        let server = Server(child);
        let (sender, ready) = std::sync::mpsc::channel();
        let reader = std::thread::Builder::new().name("ready".to_owned());
        let reading = reader.spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        reading.context("cannot start a thread to wait for a server")?;
        match ready.recv_timeout(READY_WAIT) {
            Ok(line) if line.split_whitespace().next() == Some("ready") => {
                self.servers.push(server);
                say(&format!("  {}", line.trim()))
            }
            _ => bail!("`sidecore {}` did not become ready", args.join(" ")),
        }
    }

    /// Starts a foreign server.
    fn start(&mut self, name: &str, args: &[&str]) -> Result<()> {
        say(&format!("$ {name} {} &", args.join(" ")))?;
        let mut command = self.command(name);
        command.args(args).stdin(Stdio::null());
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot start `{name}`"))?;
        self.servers.push(Server(child));
        Ok(())
    }

    fn fail(&mut self, what: &str) -> Result<()> {
        say(&format!("  PROBLEM: {what}"))?;
        self.failed.push(what.to_owned());
        Ok(())
    }

    fn finish(self, result: Result<()>) -> Result<Outcome> {
        if let Err(error) = result {
            if output::is_broken_pipe(&error) {
                return Err(error);
            }
            say(&format!("\nThe tour stopped: {}", output::chain(&error)))?;
            // Anything still mounted would keep the scratch directory busy.
            let mnt = self.scratch.join("mnt");
            let _ = Command::new(&self.program)
                .args(["block", "umount"])
                .arg(mnt)
                .output();
            return Ok(Outcome::Problem);
        }
        self.sum_up()?;
        if self.failed.is_empty() {
            say(
                "\nEverything above worked. `sidecore papers` answers every figure of the \
                 documents; the `bench` commands measure each part beside its peers.",
            )?;
            return Ok(Outcome::Done);
        }
        say(&format!(
            "\n{} of the steps above did not work:",
            self.failed.len()
        ))?;
        for problem in &self.failed {
            say(&format!("  {problem}"))?;
        }
        Ok(Outcome::Problem)
    }
}

/// Waits until something listens, for the start time of a server at most.
///
/// # Errors
/// Nothing listens by then.
fn wait_for(address: &str) -> Result<()> {
    let begun = Instant::now();
    while std::net::TcpStream::connect(address).is_err() {
        if begun.elapsed() > READY_WAIT {
            bail!("a server did not become ready");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A loopback address whose port is free at the moment.
fn free_address() -> Result<String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.to_string())
}

/// The steps, as a file of their own has them.
const STEPS: &str = include_str!("tour/steps.txt");
const NET_CONFIG: &str = "[nic]\nkind = \"tap\"\nname = \"sidecore0\"\nhost = [\"10.77.0.1/24\"]\n\
                          [stack]\naddresses = [\"10.77.0.2/24\"]\n";

/// Large directories of a Debian installation, candidates for packing.
const CANDIDATES: [&str; 6] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/include",
    "/usr/share/doc",
    "/usr/share",
];

/// Bytes in the files under a directory; counting stops above `enough`.
fn bytes_under(directory: &Path, enough: u64) -> u64 {
    let mut bytes = 0;
    let mut rest = vec![directory.to_owned()];
    while let Some(directory) = rest.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => rest.push(entry.path()),
                Ok(metadata) => bytes += metadata.len(),
                Err(_) => {}
            }
            if bytes > enough {
                return bytes;
            }
        }
    }
    bytes
}

/// Lines of a foreign program's output that are shown.
const LINES_MAX: usize = 12;

/// Prints our own words. They may begin with a line break, which [`output::line`] would escape: it
/// is for names from elsewhere.
fn say(text: &str) -> Result<()> {
    text.split('\n').try_for_each(output::line)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is no UTF-8 name", path.display()))
}

fn seconds(begun: Instant) -> String {
    format!("{:.2} s", begun.elapsed().as_secs_f64())
}
