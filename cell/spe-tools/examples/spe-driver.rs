//! The drivers without the rest of the program: `spe-driver env`, or under a driver's name.

use sidecore_spe_tools::{Error, Kit, Parts, driver_named};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let run = || -> Result<ExitCode, Error> {
        let program = std::env::current_exe().map_err(|source| Error::Start {
            tool: "this program".into(),
            source,
        })?;
        let kit = Kit::open(&Parts {
            program,
            headers: &[],
            library: None,
        })?;
        match driver_named(Path::new(&name)) {
            Some(driver) => driver.run(&kit, arguments.collect()),
            None => {
                use std::io::Write as _;
                let native = arguments.any(|argument| argument == "--native");
                let text = kit.environment(native);
                let _ = std::io::stdout().write_all(text.as_bytes());
                Ok(ExitCode::SUCCESS)
            }
        }
    };
    run().unwrap_or_else(|error| {
        eprintln!("{}: {error}", Path::new(&name).display());
        ExitCode::from(2)
    })
}
