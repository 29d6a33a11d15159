use super::*;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_trusted_folder_is_made_and_used() {
    let root = scratch();
    let path = root.path().join("one/two");
    let folder = Folder::create_trusted(&path, 0o700).unwrap();
    folder
        .replace(OsStr::new("name"), 0o600, |file| file.write_all(b"all"))
        .unwrap();
    let mut text = String::new();
    let mut file = folder.read_file(Path::new("name")).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "all");
    assert_eq!(folder.names().unwrap(), [OsString::from("name")]);
    Folder::open_trusted(&path).unwrap();
}

#[test]
fn a_failed_write_leaves_the_old_contents_and_no_other_file() {
    let root = scratch();
    let folder = Folder::open(root.path()).unwrap();
    let name = OsStr::new("name");
    folder
        .replace(name, 0o600, |file| file.write_all(b"old"))
        .unwrap();
    let failing = folder.replace(name, 0o600, |file| {
        file.write_all(b"half")?;
        Err(io::Error::other("the disk is full"))
    });
    failing.unwrap_err();
    assert_eq!(std::fs::read(root.path().join("name")).unwrap(), b"old");
    assert_eq!(folder.names().unwrap().len(), 1);
}

#[test]
fn what_others_can_exchange_is_refused() {
    let root = scratch();
    let open = root.path().join("open");
    std::fs::create_dir(&open).unwrap();
    set_mode(&open, 0o777);
    let inside = open.join("inside");
    std::fs::create_dir(&inside).unwrap();
    let refused = Folder::open_trusted(&inside).unwrap_err();
    assert!(matches!(refused, FolderError::Writable { .. }), "{refused}");
    let refused = Folder::create_trusted(&open.join("new"), 0o700).unwrap_err();
    assert!(matches!(refused, FolderError::Writable { .. }), "{refused}");
    // A sticky folder is fine above a folder of ours, but not as the folder itself.
    set_mode(&open, 0o1777);
    Folder::open_trusted(&inside).unwrap();
    Folder::open_trusted(&open).unwrap_err();
    if rustix::process::geteuid().is_root() {
        chown(&inside, Some(54_321), None).unwrap();
        let refused = Folder::open_trusted(&inside).unwrap_err();
        assert!(
            matches!(refused, FolderError::Owner { uid: 54_321, .. }),
            "{refused}"
        );
    }
}

#[test]
fn no_link_is_followed_below_a_folder() {
    let root = scratch();
    let secret = root.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("file"), "secret").unwrap();
    let inside = root.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    symlink(&secret, inside.join("link")).unwrap();
    symlink(secret.join("file"), inside.join("file")).unwrap();
    let folder = Folder::open(&inside).unwrap();
    for relative in ["link", "link/file", "file", "../secret", "../secret/file"] {
        let relative = Path::new(relative);
        folder.beneath(relative).unwrap_err();
        folder.read_file(relative).unwrap_err();
        open_by_components(folder.as_fd(), relative, OFlags::RDONLY, Mode::empty()).unwrap_err();
    }
}

#[test]
fn a_pipe_does_not_hold_the_reader_up() {
    let root = scratch();
    fs::mknodat(CWD, root.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let folder = Folder::open(root.path()).unwrap();
    let refused = folder.read_file(Path::new("pipe")).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_moved_folder_is_still_reached() {
    let root = scratch();
    let before = root.path().join("before");
    std::fs::create_dir(&before).unwrap();
    let folder = Folder::open(&before).unwrap();
    std::fs::rename(&before, root.path().join("after")).unwrap();
    std::fs::create_dir(&before).unwrap();
    std::fs::write(folder.reach(OsStr::new("name")), "here").unwrap();
    assert!(root.path().join("after/name").exists());
    assert!(!before.join("name").exists());
}
