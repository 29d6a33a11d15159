//! Kills daemons and clients under load, a thousand times, and looks at every result.
//!
//! `cargo run --release -p sidecore-daemon --example daemon_soak -- [--rounds N] [--seed S]`
//!
//! Ends with a summary line; a wrong result is a panic that names round and seed.

#[path = "../tests/soak/mod.rs"]
mod soak;

use std::io::Write;
use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, play, role, socket] = &args[..]
        && play == "play"
    {
        soak::play(role, Path::new(socket));
        return Ok(());
    }
    let value = |name: &str| {
        let place = args.iter().position(|arg| arg == name)?;
        args.get(place + 1)?.parse::<u64>().ok()
    };
    let rounds = value("--rounds").unwrap_or(1000) as u32;
    let seed = value("--seed").unwrap_or(1);
    let program = std::env::current_exe()?;
    let begun = std::time::Instant::now();
    let report = soak::run(rounds, seed, |role, socket| {
        let mut command = Command::new(&program);
        command.arg("play").arg(role).arg(socket);
        command
    });
    let seconds = begun.elapsed().as_secs();
    writeln!(
        std::io::stdout(),
        "{rounds} rounds, seed {seed}, {seconds} s: {report:?}"
    )?;
    Ok(())
}
