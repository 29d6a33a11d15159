//! `mount.sidecore`: what mount(8) starts for a file system of the type `sidecore`, as a line of
//! `/etc/fstab` or a unit of systemd's has it.
//!
//! Why here: such a line has an image, a directory and options. They become the arguments of `block
//! mount`, where each option `NAME` is `--NAME`, and this process becomes that command. Must stay
//! true: an option that would have no effect here is refused, unless mount(8) itself handles it, or
//! it promises less than is done anyway.
//! Source: mount(8), "External helpers".

use super::super::image;
use super::Args;
use crate::output;
use anyhow::{Context, Result, bail};
use clap::{Args as _, Parser};
use sidecore_export::mount::image_on;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

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
    #[arg(short, hide = true)]
    no_table: bool,
    #[arg(short, hide = true)]
    verbose: bool,
    #[arg(short, hide = true)]
    read_only: bool,
    #[arg(short, hide = true)]
    writable: bool,
    #[arg(short, hide = true)]
    type_name: Option<String>,
    /// Print this
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// The helper's work, where the program was started by its name.
pub(crate) fn as_helper(name: Option<&OsStr>) -> Option<ExitCode> {
    let name = Path::new(name?).file_name()?;
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
    if words.fake {
        return Ok(());
    }
    // `mount -a` calls again for an image whose name is not in the table of mounts.
    let image = PathBuf::from(image::name(&words.source));
    let absolute = std::path::absolute(&image).unwrap_or_else(|_| image.clone());
    if image_on(&words.dir)?.is_some_and(|there| there == absolute || there == image) {
        return Ok(());
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("sidecore").args(["block", "mount"]);
    command
        .args(options)
        .arg("--")
        .arg(&words.source)
        .arg(&words.dir);
    Err(command.exec()).context("cannot start `sidecore block mount`")
}

/// The arguments of `block mount` for options.
fn options(options: &[String], sloppy: bool) -> Result<Vec<OsString>> {
    let known = Args::augment_args(clap::Command::new("mount"));
    let mut words = Vec::new();
    for option in options.iter().map(|option| option.trim()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        if MEANT_FOR_OTHERS.contains(&name) || name.starts_with("x-") || name.starts_with("X-") {
            continue;
        }
        if NOT_HERE.contains(&name) {
            bail!("the option {name} cannot be had with an image; leave it out");
        }
        let argument = known.get_arguments().find(|argument| {
            argument.get_long() == Some(name) && !argument.is_hide_set() && name != "foreground"
        });
        let Some(argument) = argument else {
            if sloppy {
                continue;
            }
            bail!("there is no option {name}; `sidecore block mount --help` lists them");
        };
        match (argument.get_action().takes_values(), value) {
            (true, Some(value)) => words.push(format!("--{name}={value}").into()),
            (false, None) => words.push(format!("--{name}").into()),
            (true, None) => bail!("the option {name} wants a value: {name}=VALUE"),
            (false, Some(_)) => bail!("the option {name} takes no value"),
        }
    }
    Ok(words)
}

/// Name by which mount(8) finds the helper.
const NAME: &str = "mount.sidecore";

/// Options that mount(8) or systemd handles, or that ask for the default or for less. `suid` and
/// `dev` are among the defaults of every line: only `trust` makes those count.
const MEANT_FOR_OTHERS: &[&str] = &[
    "",
    "ro",
    "rw",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "exec",
    "async",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "comment",
];

/// Options whose promise is not kept here.
const NOT_HERE: &[&str] = &[
    "remount", "bind", "rbind", "move", "noexec", "sync", "dirsync", "mand",
];

#[cfg(test)]
mod tests {
    use super::options;

    fn of(text: &str, sloppy: bool) -> Result<String, String> {
        let given: Vec<String> = text.split(',').map(Into::into).collect();
        let words = options(&given, sloppy).map_err(|error| error.to_string())?;
        Ok(words.join(" ".as_ref()).into_string().expect("text"))
    }

    #[test]
    fn options_become_the_words_of_the_command() {
        let lines = [
            ("rw", ""),
            ("rw,nosuid,_netdev,x-systemd.automount,comment=a", ""),
            ("ro,rootless,memory=64MiB", "--rootless --memory=64MiB"),
            ("fs=ext4,overlay=/a b", "--fs=ext4 --overlay=/a b"),
            (
                "cache=/var/cache/c=d,trust",
                "--cache=/var/cache/c=d --trust",
            ),
        ];
        for (given, wanted) in lines {
            assert_eq!(of(given, false).as_deref(), Ok(wanted), "{given}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        let lines = [
            ("noexec", "cannot be had"),
            ("remount,ro", "cannot be had"),
            ("foreground", "no option foreground"),
            ("background-child", "no option background-child"),
            ("colour=red", "no option colour"),
            ("memory", "wants a value"),
            ("rootless=yes", "takes no value"),
        ];
        for (given, wanted) in lines {
            let refused = of(given, false).expect_err(given);
            assert!(refused.contains(wanted), "{given}: {refused}");
        }
        assert_eq!(of("colour=red,rootless", true).as_deref(), Ok("--rootless"));
        assert!(of("noexec", true).is_err());
    }
}
