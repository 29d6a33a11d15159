//! The kit's files, by their paths in it.
//!
//! They stand in five archives, each under a line `-- PATH --`: most have a few lines, and all are
//! read from the unpacked kit alone.

use std::sync::LazyLock;

/// All files of the kit that are the same for every build: path and text.
pub(crate) static FILES: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    let mut files: Vec<_> = ARCHIVES
        .iter()
        .flat_map(|archive| files_of(archive))
        .collect();
    for (path, of) in ALSO {
        let text = files.iter().find(|file| file.0 == of).map(|file| file.1);
        files.extend(text.map(|text| (path, text)));
    }
    files
});

/// The files of an archive.
fn files_of(archive: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut rest = archive.strip_prefix("-- ");
    std::iter::from_fn(move || {
        let (path, behind) = rest?.split_once(" --\n")?;
        match behind.find("\n-- ") {
            Some(end) => {
                rest = behind.get(end + "\n-- ".len()..);
                behind.get(..=end).map(|text| (path, text))
            }
            None => {
                rest = None;
                Some((path, behind))
            }
        }
    })
}

static ARCHIVES: [&str; 5] = [
    include_str!("../common.txtar"),
    include_str!("../spu/include.txtar"),
    include_str!("../spu/lib.txtar"),
    include_str!("../ppu/include.txtar"),
    include_str!("../ppu/host.txtar"),
];

/// Further paths of files, and the paths that they have in an archive.
const ALSO: [(&str, &str); 2] = [
    ("include/common/sidecore_altivec.h", "include/ppu/altivec.h"),
    ("sdk/buildutils/make.footer", "sdk/make.footer"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_cut_at_their_headings_alone() {
        let files = files_of("-- a.h --\nint a;\n-- b/c.h --\n -- no heading --\n");
        let wanted = [("a.h", "int a;\n"), ("b/c.h", " -- no heading --\n")];
        assert!(files.eq(wanted));
        for archive in ARCHIVES {
            let bytes =
                files_of(archive).map(|(path, text)| "-- ".len() + path.len() + 4 + text.len());
            assert_eq!(bytes.sum::<usize>(), archive.len());
        }
    }

    #[test]
    fn each_path_stands_once() {
        let mut paths = FILES.iter().map(|(path, _)| path).collect::<Vec<_>>();
        paths.sort();
        assert!(paths.windows(2).all(|two| two[0] != two[1]));
        assert!(ALSO.iter().all(|(path, _)| paths.contains(&path)));
        assert!(paths.len() > 90, "{}", paths.len());
    }
}
