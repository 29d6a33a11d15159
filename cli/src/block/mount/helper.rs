//! `mount.sidecore`: what mount(8) starts for a file system of the type `sidecore`, as a line of
//! `/etc/fstab` or a unit of systemd's has it.
//!
//! Why here: the options are those of `block mount`; `sidecore_export::mount::fstab` says which are
//! refused. Source: mount(8), "External helpers".

use super::Args;
use crate::output;
use anyhow::Result;
use clap::{ArgAction, Args as _, Parser};
use sidecore_export::mount::become_mount;
use sidecore_export::mount::fstab::{self, OptionError};
use sidecore_remote::access::name;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Mounts a compressed image, for mount(8).
#[derive(Parser)]
#[command(name = "mount.sidecore", version, disable_help_flag = true)]
#[command(after_help = "The options are those of `sidecore block mount`, without their dashes.")]
struct Words {
    /// The image: a file or a URL
    source: PathBuf,
    /// Mount point
    dir: PathBuf,
    /// Options
    #[arg(short, value_delimiter = ',')]
    options: Vec<String>,
    /// Leave out options that are not known
    #[arg(short)]
    sloppy: bool,
    /// Do all but mount
    #[arg(short)]
    fake: bool,
    /// Flags of mount(8)'s that change nothing: no table, verbose, read-only, writable
    #[arg(short = 'n', short_aliases = ['v', 'r', 'w'], action = ArgAction::Count, hide = true)]
    ignored: u8,
    #[arg(short, hide = true)]
    type_name: Option<String>,
    /// Print this
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// The helper's work, where the program was started by its name.
pub(crate) fn as_helper(name: &OsStr) -> Option<ExitCode> {
    let name = Path::new(name).file_name()?;
    (name == NAME).then(|| {
        let words = Words::parse();
        let Err(error) = run(&words) else {
            return ExitCode::SUCCESS;
        };
        output::note!("{NAME}: {}", output::chain(&error));
        ExitCode::from(2)
    })
}

/// Becomes `sidecore block mount`, or returns where there is nothing to do.
fn run(words: &Words) -> Result<()> {
    let options = options(&words.options, words.sloppy)?;
    match words.fake {
        true => Ok(()),
        false => {
            let (source, name) = (&words.source, name(&words.source));
            Ok(become_mount(options, (source, &name), &words.dir)?)
        }
    }
}

/// The arguments of `block mount` for options.
fn options(options: &[String], sloppy: bool) -> Result<Vec<OsString>, OptionError> {
    let known = Args::augment_args(clap::Command::new("mount"));
    fstab::words(options, sloppy, |name| {
        let is_it = |it: &&clap::Arg| it.get_long() == Some(name) && !it.is_hide_set();
        // mount(8) waits for this command: it must end once the image is mounted.
        let argument = known.get_arguments().find(is_it);
        let argument = argument.filter(|_| name != "foreground")?;
        Some(argument.get_action().takes_values())
    })
}

/// Name by which mount(8) finds the helper.
const NAME: &str = "mount.sidecore";

#[cfg(test)]
mod tests {
    use super::options;

    #[test]
    fn the_options_are_those_of_the_command_that_its_help_shows() {
        let of = |text: &str| options(&[text.to_owned()], false);
        assert_eq!(of("memory=64MiB").unwrap(), ["--memory=64MiB"]);
        assert_eq!(of("rootless").unwrap(), ["--rootless"]);
        for hidden in ["foreground", "background-child", "adopt"] {
            let refused = of(hidden).unwrap_err().to_string();
            assert!(refused.contains("no option"), "{refused}");
        }
    }
}
