//! Files as lists show them: a record for JSON, and a line as `ls -l` prints it.
//!
//! Why here: `block ls` and `block find` list alike. Pure but for the target of a link, which is
//! read from the image.

use crate::{FilesError, Kind, Node, Tree};

/// A file in a list.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Listed {
    /// Path from the root of the image, which begins with a slash; bytes that are not UTF-8 are
    /// replaced.
    pub path: String,
    /// `file`, `directory`, `link`, `character device`, `block device`, `pipe` or `socket`.
    pub kind: &'static str,
    /// Permissions in octal digits.
    pub permissions: String,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Time of the last change, in seconds since 1970.
    pub mtime_s: i64,
    /// Target of a symbolic link.
    pub target: Option<String>,
    #[serde(skip)]
    node: Node,
}

impl Listed {
    /// The file at `path`.
    ///
    /// # Errors
    /// [`FilesError`] where its target cannot be read.
    pub fn new(tree: &dyn Tree, path: &[u8], node: &Node) -> Result<Self, FilesError> {
        let target = match node.kind {
            Kind::Link => Some(String::from_utf8_lossy(&tree.link(node)?).into_owned()),
            _ => None,
        };
        Ok(Self {
            path: format!("/{}", String::from_utf8_lossy(path)),
            kind: kind_name(node.kind),
            permissions: format!("{:04o}", node.permissions),
            links: node.links,
            uid: node.uid,
            gid: node.gid,
            size_bytes: node.size_bytes,
            mtime_s: node.mtime_s,
            target,
            node: *node,
        })
    }

    /// The line of `ls -l`, times in UTC; `name` stands for its path.
    #[must_use]
    pub fn line(&self, name: &str) -> String {
        let node = &self.node;
        let size = match node.kind {
            Kind::CharacterDevice | Kind::BlockDevice => {
                format!("{}, {}", node.device.0, node.device.1)
            }
            _ => node.size_bytes.to_string(),
        };
        let mode = mode(node);
        let time = time(node.mtime_s);
        let target = self.target.iter().map(|target| format!(" -> {target}"));
        let target: String = target.collect();
        let Self {
            links, uid, gid, ..
        } = self;
        format!("{mode} {links:>3} {uid:>5} {gid:>5} {size:>12} {time} {name}{target}")
    }
}

/// The name of a kind, as lists have it.
#[must_use]
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Link => "link",
        Kind::CharacterDevice => "character device",
        Kind::BlockDevice => "block device",
        Kind::Fifo => "pipe",
        Kind::Socket => "socket",
    }
}

/// `drwxr-sr-x`.
fn mode(node: &Node) -> String {
    let first = match node.kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Link => 'l',
        Kind::CharacterDevice => 'c',
        Kind::BlockDevice => 'b',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
    };
    let mut text = String::from(first);
    for (class, (special, letter)) in [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')]
        .iter()
        .enumerate()
    {
        let bits = node.permissions >> (6 - 3 * class);
        let has = |bit: u16| bits & bit != 0;
        text.push(if has(4) { 'r' } else { '-' });
        text.push(if has(2) { 'w' } else { '-' });
        text.push(match (node.permissions & special != 0, has(1)) {
            (true, true) => *letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `2001-09-09 01:46`, in UTC.
fn time(seconds: i64) -> String {
    let minutes = seconds.div_euclid(60);
    let days = minutes.div_euclid(24 * 60);
    let of_day = minutes.rem_euclid(24 * 60);
    // Years that begin in March end with the leap day; an era has 400 of them (days_from_civil of
    // Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms", the other way round).
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (of_day / 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00"),
            (-1, "1969-12-31 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (1_000_000_000, "2001-09-09 01:46"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(time(seconds), expected);
        }
    }
}
