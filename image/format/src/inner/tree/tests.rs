//! Trees that are deep or wide, and trees that change while they are walked.

use super::*;
use std::fs;
use std::os::unix::fs::symlink;

fn paths(root: &Path) -> Vec<PathBuf> {
    let folder = Folder::open(root).unwrap();
    let mut found = Vec::new();
    walk(&folder, |visit| {
        assert_eq!(visit.path.iter().count(), visit.depth + 1);
        found.push(visit.path.to_owned());
        Ok(())
    })
    .unwrap();
    found
}

/// Descriptors of this process that are open in `root`.
fn open_in(root: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets.filter(|target| target.starts_with(root)).count()
}

#[test]
fn entries_come_in_the_order_of_their_paths() {
    let root = tempfile::tempdir().unwrap();
    for name in ["a/b/c", "a.b/c", "a-b", "b/a", "a/z"] {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let found = paths(root.path());
    assert!(found.is_sorted(), "{found:?}");
    assert_eq!(found.len(), 9);
}

#[test]
fn a_deep_tree_takes_few_descriptors() {
    let root = tempfile::tempdir().unwrap();
    let depth = 300;
    let mut here = Folder::open(root.path()).unwrap();
    for _ in 0..depth {
        // On both sides of the path down, so that the walk returns to each directory.
        for name in ["long name of a directory", "a", "z"] {
            rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
        }
        here = here.beneath(Path::new("long name of a directory")).unwrap();
    }
    let folder = Folder::open(root.path()).unwrap();
    let mut count = 0;
    let mut open_max = 0;
    walk(&folder, |visit| {
        count += 1;
        if visit.depth % 50 == 0 {
            open_max = open_max.max(open_in(root.path()));
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(count, 3 * depth);
    assert!(
        (OPEN_MAX..OPEN_MAX + 8).contains(&open_max),
        "{open_max} are open"
    );
}

#[test]
fn a_directory_that_becomes_a_link_is_a_link() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let tree = root.path();
    for name in ["a", "b", "c"] {
        fs::create_dir(tree.join(name)).unwrap();
    }
    let folder = Folder::open(tree).unwrap();
    let mut kinds = Vec::new();
    walk(&folder, |visit| {
        if visit.path == Path::new("a") {
            // Both were listed as directories.
            fs::rename(tree.join("b"), tree.join("away")).unwrap();
            symlink(outside.path(), tree.join("b")).unwrap();
            fs::remove_dir(tree.join("c")).unwrap();
            rustix::fs::mknodat(
                rustix::fs::CWD,
                tree.join("c"),
                FileType::Fifo,
                Mode::RUSR,
                0,
            )
            .unwrap();
        }
        kinds.push((
            visit.path.to_owned(),
            FileType::from_raw_mode(visit.stat.st_mode),
        ));
        Ok(())
    })
    .unwrap();
    let expected = [
        ("a", FileType::Directory),
        ("b", FileType::Symlink),
        ("c", FileType::Fifo),
    ];
    assert_eq!(
        kinds,
        expected.map(|(name, kind)| (PathBuf::from(name), kind))
    );
}

#[test]
fn a_directory_that_was_exchanged_is_not_come_back_to() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path();
    let deep: PathBuf = (0..OPEN_MAX + 4).map(|_| "d").collect();
    fs::create_dir_all(tree.join(&deep)).unwrap();
    for name in ["d", "z"] {
        fs::create_dir_all(tree.join("d").join(name)).unwrap();
    }
    let folder = Folder::open(tree).unwrap();
    let error = walk(&folder, |visit| {
        if visit.path == deep {
            fs::rename(tree.join("d"), tree.join("away")).unwrap();
            fs::create_dir_all(tree.join("d/z")).unwrap();
        }
        Ok(())
    })
    .unwrap_err();
    assert!(matches!(error, InnerError::Changed { .. }), "{error}");
}
