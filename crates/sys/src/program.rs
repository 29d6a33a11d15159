//! Where other programs are.
//!
//! Why here: peers, the tour and the list of what this machine offers look for programs; they must
//! agree. Must stay true: a program that a system's administrator would find is found, though a
//! user's path may not say so. Source: environ(7), hier(7).

use std::path::PathBuf;

/// The file that `name` starts, in the directories of `PATH` and then in those of the system's own
/// programs. Looks at file systems.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(SYSTEM_PLACES.map(PathBuf::from));
    places
        .map(|place| place.join(name))
        .find(|candidate| candidate.is_file())
}

/// Where system programs lie though a user's path may not say so.
const SYSTEM_PLACES: [&str; 2] = ["/usr/sbin", "/sbin"];

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn the_shell_is_found_and_what_is_not_there_is_not() {
        assert!(find("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find("no-program-has-this-name"), None);
    }
}
