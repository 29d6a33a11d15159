//! `sidecore top`: what a daemon's engines and clients do, live.
//!
//! Why here: printing; what is printed comes from `sidecore_daemon::client::status`.
//! Must stay true: Ctrl-C leaves the terminal as it was.

use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_daemon::{client, find_socket};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Arguments of `top`.
#[derive(clap::Args)]
#[command(after_help = "\
Refreshes every second on a terminal; prints once elsewhere.

Exit status: 0 shown, 2 no daemon, or it did not answer.")]
pub(crate) struct Args {
    /// The daemon's socket [default: the own user's, else /run/sidecore/daemon.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    server: crate::server::Server,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Print once, as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let trust = self.server.trust();
        let socket = self.socket.unwrap_or_else(|| find_socket(&trust));
        let mut status = client::status(&socket, &trust)?;
        if self.json {
            output::json(&status)?;
            return Ok(Outcome::Done);
        }
        if self.once || !std::io::stdout().is_terminal() {
            output::lines(&status.lines())?;
            return Ok(Outcome::Done);
        }
        let stop = raise_on(&[SIGINT, SIGTERM])?;
        let _screen = Screen::open()?;
        loop {
            // From the top left corner; each line clears its rest, the last one what is below.
            let text = status.lines().join("\x1b[K\n");
            output::screen(&format!("\x1b[H{text}\x1b[K\x1b[J"))?;
            let until = Instant::now() + REFRESH;
            while Instant::now() < until {
                if stop.load(Ordering::Relaxed) {
                    return Ok(Outcome::Done);
                }
                std::thread::sleep(LOOK);
            }
            status = client::status(&socket, &trust)?;
        }
    }
}

/// The terminal's other screen, until dropped.
struct Screen;

impl Screen {
    fn open() -> Result<Self> {
        output::screen("\x1b[?1049h\x1b[?25l").map(|()| Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A closed terminal is not an error.
        let _ = output::screen("\x1b[?25h\x1b[?1049l");
    }
}

/// Between two looks at the daemon.
const REFRESH: Duration = Duration::from_secs(1);
/// The time within which a signal is noticed.
const LOOK: Duration = Duration::from_millis(50);
