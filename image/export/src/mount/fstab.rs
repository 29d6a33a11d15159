//! Options of a mount as mount(8) passes them on, from a line of `/etc/fstab` or a unit of
//! systemd's: those that are this program's become words of a command line.
//!
//! Why here: each option `NAME` is the command's `--NAME`. Must stay true: an option that would
//! have no effect is refused, unless mount(8) itself handles it, or it promises less than is done
//! anyway. Pure. Source: mount(8), "External helpers".

use std::ffi::OsString;

/// Reasons why an option is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// Its promise is not kept here.
    #[error("the option {0} cannot be had with an image; leave it out")]
    NotHere(String),
    /// The command has none of that name.
    #[error("there is no option {0}; `sidecore block mount --help` lists them")]
    Unknown(String),
    /// It has no value and needs one.
    #[error("the option {0} wants a value: {0}=VALUE")]
    Value(String),
    /// It has a value and takes none.
    #[error("the option {0} takes no value")]
    NoValue(String),
}

/// Words of a command line for options. `takes_value` says of a name whether that option of the
/// command takes a value; `None` where there is none. `sloppy` leaves out what is not known.
///
/// # Errors
/// [`OptionError`].
pub fn words(
    options: &[String],
    sloppy: bool,
    takes_value: impl Fn(&str) -> Option<bool>,
) -> Result<Vec<OsString>, OptionError> {
    let mut words = Vec::new();
    for option in options.iter().map(|option| option.trim()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        // `x-` and `X-` begin comments for programs that read the table (mount(8)).
        if MEANT_FOR_OTHERS.contains(&name) || name.starts_with("x-") || name.starts_with("X-") {
            continue;
        }
        if NOT_HERE.contains(&name) {
            return Err(OptionError::NotHere(name.to_owned()));
        }
        match (takes_value(name), value) {
            (None, _) if sloppy => {}
            (None, _) => return Err(OptionError::Unknown(name.to_owned())),
            (Some(true), Some(value)) => words.push(format!("--{name}={value}").into()),
            (Some(false), None) => words.push(format!("--{name}").into()),
            (Some(true), None) => return Err(OptionError::Value(name.to_owned())),
            (Some(false), Some(_)) => return Err(OptionError::NoValue(name.to_owned())),
        }
    }
    Ok(words)
}

/// Options that mount(8) or systemd handles, or that ask for the default or for less. `suid` and
/// `dev` are among the defaults of every line: only `trust` makes those count.
#[rustfmt::skip]
const MEANT_FOR_OTHERS: &[&str] = &[
    "", "ro", "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group",
    "nofail", "_netdev", "nosuid", "suid", "nodev", "dev", "exec", "async", "atime", "noatime",
    "relatime", "norelatime", "strictatime", "nostrictatime", "diratime", "nodiratime", "lazytime",
    "nolazytime", "silent", "loud", "comment",
];

/// Options whose promise is not kept here.
#[rustfmt::skip]
const NOT_HERE: &[&str] = &[
    "remount", "bind", "rbind", "move", "noexec", "sync", "dirsync", "mand",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, sloppy: bool) -> Result<String, String> {
        let given: Vec<String> = text.split(',').map(Into::into).collect();
        let takes_value = |name: &str| match name {
            "memory" | "fs" | "overlay" | "cache" => Some(true),
            "rootless" | "trust" => Some(false),
            _ => None,
        };
        let words = words(&given, sloppy, takes_value).map_err(|error| error.to_string())?;
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
            ("colour=red", "no option colour"),
            ("memory", "wants a value: memory=VALUE"),
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
