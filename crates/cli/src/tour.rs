//! `sidecore tour`: the main job, end to end, on this machine's own files.
//!
//! Why here: a newcomer sees in one command what Sidecore does, with the very commands that they
//! would type; each is printed before it runs, as this program itself run once more.
//! Must stay true: nothing is skipped silently, what it makes is undone also when a step fails, and
//! the exit status is 1 if any step did.

use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result, bail};
use sidecore_sys::cpu;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Arguments of `tour`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A smaller directory and fewer steps: some ten seconds.
    #[arg(long)]
    quick: bool,
    /// The directory to pack [default: /usr/bin; with --quick /usr/share/doc].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What the tour needs besides itself, and for which step.
const TOOLS: [(&str, &str); 7] = [
    ("mkfs.erofs", "making a file system of a directory"),
    ("diff", "comparing the mounted tree"),
    ("zstd", "unpacking an image without Sidecore"),
    ("nbdcopy", "reading it over NBD"),
    ("ip", "a network of the tour's own"),
    ("ping", "asking the stack from the kernel"),
    ("nc", "talking to the stack from the kernel"),
];

/// How long a server may take to accept.
const READY_WAIT: Duration = Duration::from_secs(20);

impl Args {
    /// Runs the tour.
    pub(crate) fn run(self) -> Result<Outcome> {
        for (tool, purpose) in TOOLS {
            if !in_path(tool) {
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
        let mut tour = Tour {
            program: std::env::current_exe().context("cannot find this program")?,
            scratch: scratch.path().to_owned(),
            failed: Vec::new(),
            namespace: None,
            interrupted: raise_on(&[SIGINT, SIGTERM])?,
        };
        say(&format!(
            "Sidecore's tour: {} cores, {}, everything in {}",
            cpu::allowed().map_or(1, |cpus| cpus.len()),
            shown,
            scratch.path().display()
        ))?;
        let result = tour
            .block(&directory, self.quick)
            .and_then(|()| tour.off_load(self.quick))
            .and_then(|()| tour.tlb(self.quick))
            .and_then(|()| tour.phylo(self.quick))
            .and_then(|()| tour.net(self.quick));
        tour.finish(result)
    }

    /// The first directory of a useful size.
    fn choose(&self) -> Result<PathBuf> {
        let candidates: &[&str] = if self.quick {
            &["/usr/share/doc", "/usr/share", "/usr/bin"]
        } else {
            &["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/share"]
        };
        let exists = |path: &&&str| Path::new(path).is_dir();
        match candidates.iter().find(exists) {
            Some(path) => Ok(PathBuf::from(path)),
            None => bail!(
                "none of {} is here; name one with --dir",
                candidates.join(", ")
            ),
        }
    }
}

struct Tour {
    program: PathBuf,
    scratch: PathBuf,
    failed: Vec<String>,
    /// Where commands run, if not among the machine's own interfaces.
    namespace: Option<Namespace>,
    /// Set by SIGINT and SIGTERM; what runs at the moment gets the signal from the terminal itself.
    interrupted: Arc<AtomicBool>,
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
    fn block(&mut self, directory: &Path, quick: bool) -> Result<()> {
        say("\n1. Pack a directory: a file system is made of it, all engines deflate it")?;
        let image = self.scratch.join("tour.img");
        self.sidecore(&["block", "pack", text(directory)?, "-o", text(&image)?])?;
        self.sidecore(&["block", "info", text(&image)?])?;
        self.sidecore(&["block", "verify", text(&image)?])?;
        self.go_on()?;
        self.mounted(directory, &image)?;
        self.go_on()?;
        self.over_nbd(&image)?;
        self.go_on()?;
        self.without_us(&image)?;
        if !quick {
            self.go_on()?;
            self.as_device(&image)?;
            self.go_on()?;
            say("\n6. The documents' own codec: LZO1X in a cloop image")?;
            let lzo = self.scratch.join("tour.cloop");
            let format = ["--format", "cloop-lzo", "-o", text(&lzo)?];
            self.sidecore(&[&["block", "pack", text(directory)?][..], &format].concat())?;
            self.sidecore(&["block", "verify", text(&lzo)?])?;
        }
        Ok(())
    }

    fn off_load(&mut self, quick: bool) -> Result<()> {
        self.go_on()?;
        let number = if quick { 5 } else { 7 };
        say(&format!(
            "\n{number}. Engines for every process: a daemon owns them, others call over shared memory"
        ))?;
        let socket = self.scratch.join("daemon.sock");
        let socket = text(&socket)?;
        let daemon = self.serve(&["daemon", "--socket", socket, "--engines", "1"])?;
        let at = ["--socket", socket];
        self.sidecore(&[&["offload", "call", "empty", "--count", "100000"][..], &at].concat())?;
        let program = self.program.clone();
        let hash = ["offload", "call", "xxh3", "--input", text(&program)?];
        self.sidecore(&[&hash[..], &at].concat())?;
        self.sidecore(&[&["top", "--once"][..], &at].concat())?;
        drop(daemon);
        self.go_on()?;
        let number = number + 1;
        say(&format!(
            "\n{number}. What it costs to reach one, and 8 workers as fibers beside processes"
        ))?;
        let groups = ["--only", "trips,edtlp", "--workers", "8"];
        self.sidecore(&[&["offload", "bench", "--quick"][..], &groups].concat())?;
        self.go_on()?;
        let number = number + 1;
        say(&format!(
            "\n{number}. The papers' table of the same, beside a model of their machine"
        ))?;
        self.sidecore(&["cell", "table1"])
    }

    fn tlb(&mut self, quick: bool) -> Result<()> {
        self.go_on()?;
        let number = if quick { 8 } else { 10 };
        say(&format!(
            "\n{number}. What address translation costs this machine (a quick look)"
        ))?;
        self.sidecore(&["tlb", "--quick"])
    }

    fn phylo(&mut self, quick: bool) -> Result<()> {
        self.go_on()?;
        let number = if quick { 9 } else { 11 };
        say(&format!(
            "\n{number}. Infer a tree: sequences evolve along one, and a search finds it again"
        ))?;
        let (msa, truth) = (self.scratch.join("tour.phy"), self.scratch.join("true.nwk"));
        let prefix = self.scratch.join("tree");
        let model = "GTR{1/3/1/1/3/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}";
        let taxa = [
            "--taxa",
            "24",
            "--sites",
            "2000",
            "--model",
            model,
            "--tree-out",
        ];
        let files = [text(&truth)?, "-o", text(&msa)?];
        self.sidecore(&[&["phylo", "simulate"][..], &taxa, &files].concat())?;
        let [starts, bootstraps] = if quick { ["1", "10"] } else { ["4", "50"] };
        let counts = ["--starts", starts, "--bootstraps", bootstraps];
        let files = ["--msa", text(&msa)?, "--prefix", text(&prefix)?];
        self.sidecore(
            &[
                &["phylo", "search", "--model", "GTR+G4"][..],
                &counts,
                &files,
            ]
            .concat(),
        )?;
        let best = prefix.with_extension("bestTree");
        self.sidecore(&["phylo", "compare", text(&truth)?, text(&best)?])
    }

    fn net(&mut self, quick: bool) -> Result<()> {
        self.go_on()?;
        let number = if quick { 10 } else { 12 };
        say(&format!(
            "\n{number}. A TCP/IP stack on one core: the kernel's programs talk to it over TAP"
        ))?;
        if !rustix::process::geteuid().is_root() {
            return self.fail("a TAP interface needs root; run the tour as root to see this step");
        }
        self.namespace = Some(Namespace::new()?);
        let (config, socket) = (self.scratch.join("net.toml"), self.scratch.join("net.sock"));
        let socket = text(&socket)?;
        output::file(&config, &format!("socket = \"{socket}\"\n{NET_CONFIG}"))?;
        let at = ["--socket", socket];
        let up = self.serve(&["net", "up", text(&config)?])?;
        let echo = self.serve(&[&["net", "echo", "0.0.0.0:7"][..], &at].concat())?;
        let source = self.serve(&[&["net", "source", "0.0.0.0:19"][..], &at].concat())?;
        self.tool(
            "ping",
            &["-q", "-c", "3", "-i", "0.2", "-w", "15", NET_ADDRESS],
        )?;
        let echoed = format!("echo hello, stack | timeout 20 nc -N {NET_ADDRESS} 7");
        self.tool("sh", &["-c", &echoed])?;
        let mib = if quick { "200" } else { "2000" };
        let read = format!(
            "exec 3<>/dev/tcp/{NET_ADDRESS}/19; \
             timeout 60 dd bs=1M count={mib} iflag=fullblock of=/dev/null <&3"
        );
        self.tool("bash", &["-c", &read])?;
        self.sidecore(&[&["net", "status"][..], &at].concat())?;
        drop((source, echo, up));
        self.namespace = None;
        Ok(())
    }

    /// A command, where the tour's commands run at the moment.
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

    /// Between two steps: an interrupted tour ends here, with everything undone.
    fn go_on(&self) -> Result<()> {
        anyhow::ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    fn mounted(&mut self, directory: &Path, image: &Path) -> Result<()> {
        say("\n2. Mount it: programs that know nothing of Sidecore read it through the kernel")?;
        let here = self.scratch.join("mnt");
        std::fs::create_dir_all(&here)?;
        if !rustix::process::geteuid().is_root() {
            return self.fail("mounting needs root; run the tour as root to see this step");
        }
        self.sidecore(&["block", "mount", text(image)?, text(&here)?])?;
        let compared = self.tool(
            "diff",
            &["-r", "--no-dereference", text(directory)?, text(&here)?],
        );
        self.sidecore(&["block", "umount", text(&here)?])?;
        compared
    }

    fn over_nbd(&mut self, image: &Path) -> Result<()> {
        say("\n3. Serve it over NBD: any NBD client reads it")?;
        let socket = self.scratch.join("nbd.sock");
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let address = format!("unix:{}", socket.display());
        let server = self.serve(&["block", "serve", text(image)?, "--nbd", &address])?;
        let copied = self.tool("nbdcopy", &[&uri, "null:"]);
        drop(server);
        copied
    }

    fn without_us(&mut self, image: &Path) -> Result<()> {
        say("\n4. Nothing locks you in: zstd itself unpacks the image")?;
        self.tool("zstd", &["-q", "-t", text(image)?])
    }

    fn as_device(&mut self, image: &Path) -> Result<()> {
        say("\n5. Attach it: a block device")?;
        if !rustix::process::geteuid().is_root() {
            return self.fail("attaching needs root; run the tour as root to see this step");
        }
        let device = self.sidecore_output(&["block", "attach", text(image)?])?;
        let device = device.trim().to_owned();
        let input = format!("if={device}");
        let read = self.tool("dd", &[&input, "of=/dev/null", "bs=1M"]);
        self.sidecore(&["block", "detach", &device])?;
        read
    }

    /// Runs this program, showing the command and what it prints.
    fn sidecore(&mut self, args: &[&str]) -> Result<()> {
        self.sidecore_output(args).map(drop)
    }

    fn sidecore_output(&mut self, args: &[&str]) -> Result<String> {
        say(&format!("$ sidecore {}", args.join(" ")))?;
        let begun = Instant::now();
        let output = self.command(&self.program).args(args).output()?;
        let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown = format!("{printed}{}", String::from_utf8_lossy(&output.stderr));
        for line in shown.lines() {
            say(&format!("  {line}"))?;
        }
        if !output.status.success() {
            printed.clear();
            bail!("`sidecore {}` ended with {}", args.join(" "), output.status);
        }
        say(&format!("  ({})", seconds(begun)))?;
        Ok(printed)
    }

    /// Runs somebody else's program; its failure is noted, and the tour goes on.
    fn tool(&mut self, name: &str, args: &[&str]) -> Result<()> {
        say(&format!("$ {name} {}", args.join(" ")))?;
        let begun = Instant::now();
        let output = self
            .command(name)
            .args(args)
            .stdin(Stdio::null())
            .output()?;
        // What was interrupted did not fail, and nothing more is begun; who called cleans up.
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
    fn serve(&mut self, args: &[&str]) -> Result<Server> {
        use std::io::BufRead;
        say(&format!("$ sidecore {} &", args.join(" ")))?;
        let mut child = self
            .command(&self.program)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("no output of the server")?;
        let server = Server(child);
        let (sender, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = std::io::BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        match ready.recv_timeout(READY_WAIT) {
            Ok(line) if line.split_whitespace().next() == Some("ready") => {
                say(&format!("  {}", line.trim()))?;
                Ok(server)
            }
            _ => bail!("`sidecore {}` did not become ready", args.join(" ")),
        }
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
            // Whatever is still mounted would hold the scratch directory.
            let mnt = self.scratch.join("mnt");
            let _ = Command::new(&self.program)
                .args(["block", "umount"])
                .arg(mnt)
                .output();
            return Ok(Outcome::Problem);
        }
        if self.failed.is_empty() {
            say(
                "\nEverything above worked. `sidecore block bench` and `sidecore offload bench` \
                 measure it beside its peers.",
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

/// The stack's own address in the tour's namespace.
const NET_ADDRESS: &str = "10.77.0.2";
const NET_CONFIG: &str = "[nic]\nkind = \"tap\"\nname = \"sidecore0\"\nhost = [\"10.77.0.1/24\"]\n\
                          [stack]\naddresses = [\"10.77.0.2/24\"]\n";

/// Lines of somebody else's output that are shown.
const LINES_MAX: usize = 12;

fn say(line: &str) -> Result<()> {
    output::line(line)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is no UTF-8 name", path.display()))
}

fn seconds(begun: Instant) -> String {
    format!("{:.2} s", begun.elapsed().as_secs_f64())
}

fn in_path(tool: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&paths)
        .chain(sbin)
        .any(|directory| directory.join(tool).is_file())
}
