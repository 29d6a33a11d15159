//! Output in a pseudo-terminal: no line wraps at 80 or 40 columns, in 24 or 8 rows; `top` ends by
//! its keys and by signals, and gives the terminal back.
//!
//! Must stay true: each command that prints a table, a progress bar or a help text is here; every
//! process that a test starts ends with the test.

use super::commands::inputs;
use nix::pty::{Winsize, openpty};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Rows and columns of the terminals.
const SIZES: [(u16, u16); 3] = [(24, 80), (8, 80), (24, 40)];

/// A program in a terminal of its own.
struct Terminal {
    child: Child,
    input: File,
    output: Receiver<Vec<u8>>,
    parser: vt100::Parser,
    /// All that was written, for messages.
    raw: Vec<u8>,
    wrapped: Option<String>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Terminal {
    fn start(folder: &Path, words: &[&str], (rows, columns): (u16, u16)) -> Self {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let ends = openpty(Some(&size), None).unwrap();
        let slave = |end: &OwnedFd| Stdio::from(end.try_clone().unwrap());
        // The terminal controls the program, so that Ctrl-C is a signal where nothing reads it.
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "--wait"])
            .arg(env!("CARGO_BIN_EXE_sidecore"))
            .args(words)
            .env("TERM", "xterm-256color")
            .env_remove("COLUMNS")
            .current_dir(folder)
            .stdin(slave(&ends.slave))
            .stdout(slave(&ends.slave))
            .stderr(slave(&ends.slave));
        let child = command.spawn().unwrap();
        drop(command);
        drop(ends.slave);
        let input = File::from(ends.master);
        let mut reader = input.try_clone().unwrap();
        let (sender, output) = channel();
        // Ends when the last program that has the terminal ends (EIO).
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            input,
            output,
            parser: vt100::Parser::new(rows, columns, 0),
            raw: Vec::new(),
            wrapped: None,
        }
    }

    /// Takes what is written within `time`; false at the end of the output.
    fn take(&mut self, time: Duration) -> bool {
        use std::sync::mpsc::RecvTimeoutError;
        match self.output.recv_timeout(time) {
            Ok(bytes) => {
                self.raw.extend_from_slice(&bytes);
                // Looked at before it is overwritten or scrolls away.
                for part in bytes.split_inclusive(|byte| b"\r\n".contains(byte)) {
                    let (text, end) = part.split_at(part.len() - 1);
                    self.parser.process(text);
                    self.look();
                    self.parser.process(end);
                    self.look();
                }
                true
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    fn look(&mut self) {
        let screen = self.parser.screen();
        let (rows, columns) = screen.size();
        // A word that is longer than the line (a path, a hash) stays whole, to be copied.
        let is_long = |word: &str| word.chars().count() > usize::from(columns);
        let is_wrapped = (0..rows).any(|row| screen.row_wrapped(row));
        if self.wrapped.is_none() && is_wrapped {
            let shown = screen.contents();
            self.wrapped = Some(shown).filter(|it| !it.split_whitespace().any(is_long));
        }
    }

    /// Waits until the screen shows a text.
    fn until(&mut self, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.parser.screen().contents().contains(text) {
            let more = self.take(Duration::from_millis(100));
            let shown = self.parser.screen().contents();
            assert!(
                more || shown.contains(text),
                "ended without `{text}`: {shown}"
            );
            assert!(Instant::now() < end, "`{text}` does not come: {shown}");
        }
    }

    /// Waits for the program's end.
    fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + Duration::from_secs(120);
        while self.take(Duration::from_millis(100)) {
            assert!(Instant::now() < end, "it does not end");
        }
        self.child.wait().unwrap()
    }

    /// The program that `setsid` started.
    fn program(&self) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(children).unwrap();
        let first = children.split_whitespace().next();
        // Without a fork it is the program itself.
        let pid = first.map_or(self.child.id().cast_signed(), |pid| pid.parse().unwrap());
        Pid::from_raw(pid).unwrap()
    }
}

/// Runs a command in each terminal; fails on a line that wraps. Its exit status is its own affair.
fn fits(folder: &Path, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    for size in SIZES {
        let mut terminal = Terminal::start(folder, &words, size);
        let status = terminal.end();
        let raw = String::from_utf8_lossy(&terminal.raw);
        assert!(!terminal.raw.is_empty(), "{line}: nothing is printed");
        assert!(
            status.code().is_some_and(|code| code <= 2),
            "{line}: {status}: {raw}"
        );
        let wrapped = terminal.wrapped.take();
        assert!(
            wrapped.is_none(),
            "{line} wraps at {size:?}:\n{}",
            wrapped.unwrap()
        );
    }
}

#[test]
fn every_help_text_fits() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man");
    let sidecore = || Command::new(env!("CARGO_BIN_EXE_sidecore"));
    assert!(
        sidecore()
            .arg("man")
            .arg(&pages)
            .status()
            .unwrap()
            .success()
    );
    let mut commands: Vec<String> = pages
        .read_dir()
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .map(|name| name.trim_end_matches(".1").replace('-', " "))
        .collect();
    commands.sort();
    assert!(commands.len() > 50, "{commands:?}");
    for command in commands {
        let words = command.trim_start_matches("sidecore").trim();
        fits(folder.path(), format!("{words} --help").trim());
    }
}

#[test]
fn tables_facts_and_errors_fit() {
    let folder = inputs::folder().to_owned();
    for line in [
        "doctor",
        "block info made.img",
        "block verify made.img",
        "block diff raw.bin other.bin",
        "block unpack made.img -o fits.bin",
        "cell table1",
        "cell table2",
        "cell fig7 --bootstraps 1,9",
        "cell fig8 --bootstraps 1,9",
        "cell uio",
        "cell run --tasks 9",
        "phylo evaluate --msa made.phy --tree made.nwk --model JC",
        "phylo test --msa made.phy --trees two.nwk --model JC --replicates 500",
        "phylo models --msa made.phy --free-rates-max 2",
        "phylo compare made.nwk made.nwk",
        "phylo search --msa made.phy --model JC --starts 1 --prefix fits --redo",
        "phylo species two.nwk",
        "phylo consensus two.nwk",
        "phylo ancestors --msa made.phy --tree made.nwk --model JC",
        "phylo bench kernels --quick",
        "papers --list --state fits-kept",
        "spe run -- sleep 0.3",
        "block list",
        // Refusals.
        "block info gs://bucket/image.img",
        "block pack raw.bin -o x.img --frame 12XB",
        "block pack raw.bin -o x.img --format zsdt",
        "block mount - mnt",
        "block ls made.img nothing",
        "phylo search made.phy",
        "status",
        "phylo consensus two.nwk -o - --json",
        "block pack raw.bin fits.img",
        "net status --socket no-such-socket",
        "offload bench --only no-such-part",
        "phylo evaluate --msa missing.phy --tree made.nwk --model JC",
        "phylo draw made.nwk -o x.jpg",
        "blok",
    ] {
        fits(&folder, line);
    }
}

#[test]
fn progress_fits() {
    let folder = tempfile::tempdir().unwrap();
    // Incompressible: slow enough that the bar is drawn.
    let mut random = sidecore_random::Random::new(7);
    let mut bytes = vec![0; 24 << 20];
    bytes.chunks_mut(8).for_each(|chunk| {
        chunk.copy_from_slice(&random.bits().to_le_bytes()[..chunk.len()]);
    });
    std::fs::write(folder.path().join("raw"), bytes).unwrap();
    for line in [
        "block pack raw -o image --level 12 --engines 1",
        "block verify image",
        "block unpack image -o again",
        "phylo simulate --taxa 12 --sites 2000 --model JC --seed 1 -o a.phy --tree-out a.nwk",
        "phylo search --msa a.phy --model GTR+G --starts 2 --prefix p --redo",
    ] {
        if line.contains("simulate") {
            let words = line.split(' ');
            let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
            let ran = command.args(words).current_dir(folder.path()).status();
            assert!(ran.unwrap().success());
        } else {
            fits(folder.path(), line);
        }
    }
}

/// A name takes most of a line.
#[test]
fn live_servers_and_recordings_fit() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("{}.img", "a-long-name-".repeat(5));
    std::fs::write(folder.path().join(&name), [7; 300_000]).unwrap();
    let served = ["block", "serve", name.as_str(), "--nbd", "unix:s"];
    let words = [&served[..], &["--trace-events", "events.json"]].concat();
    let mut server = Terminal::start(folder.path(), &words, (24, 80));
    server.until("ready");
    for line in ["block list", "block status", "block status unix:s"] {
        fits(folder.path(), line);
    }
    kill_process(server.program(), Signal::TERM).unwrap();
    server.end();
    fits(folder.path(), "trace summary events.json");
}

#[test]
fn top_fits_and_gives_the_terminal_back() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let daemon = ["daemon", "--engines", "2", "--socket", "s"];
    let mut daemon = Terminal::start(folder.path(), &daemon, (24, 80));
    daemon.until("ready");
    let socket = socket.to_str().unwrap();
    for size in [(24, 80), (8, 80), (12, 40), (4, 20)] {
        for key in ["q", "\x1b", "\x03", "SIGTERM"] {
            let mut top = Terminal::start(folder.path(), &["top", "--socket", socket], size);
            top.until("q ends");
            assert!(top.parser.screen().alternate_screen());
            let shown = top.parser.screen().contents();
            if size.0 >= 8 {
                assert!(
                    shown.contains("ENGINE") && shown.contains("BUSY%"),
                    "{shown}"
                );
            }
            match key {
                "SIGTERM" => kill_process(top.program(), Signal::TERM).unwrap(),
                key => top.input.write_all(key.as_bytes()).unwrap(),
            }
            let status = top.end();
            assert!(status.success(), "{key:?}: {status}");
            assert!(
                top.wrapped.is_none(),
                "{size:?}: {}",
                top.wrapped.take().unwrap()
            );
            let screen = top.parser.screen();
            assert!(
                !screen.alternate_screen() && !screen.hide_cursor(),
                "{key:?}"
            );
            let settings = rustix::termios::tcgetattr(&top.input).unwrap();
            let cooked = rustix::termios::LocalModes::ICANON | rustix::termios::LocalModes::ECHO;
            assert!(settings.local_modes.contains(cooked), "{key:?}");
        }
    }
    fits(folder.path(), "top --socket s --once");
    fits(folder.path(), "offload kernels --socket s");
    kill_process(daemon.program(), Signal::TERM).unwrap();
    daemon.end();
}
