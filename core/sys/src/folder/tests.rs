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
fn a_lock_is_waited_for_and_ends_with_its_folder() {
    let root = scratch();
    let [first, second] = [0; 2].map(|_| Folder::open(root.path()).unwrap());
    first.lock_within(Duration::ZERO).unwrap();
    let refused = second.lock_within(Duration::from_millis(5)).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| second.lock_within(Duration::from_secs(600)));
        drop(first);
        waiting.join().unwrap().unwrap();
    });
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

#[test]
fn own_links_lead_on_and_those_of_others_do_not() {
    let root = scratch();
    let at = |name: &str| root.path().join(name);
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::write(at("folder/file"), "text").unwrap();
    symlink("folder", at("link")).unwrap();
    symlink("../link/file", at("folder/again")).unwrap();
    let read = |name: &str| {
        let mut text = String::new();
        let mut file = open_named(&at(name), OFlags::RDONLY, 0)?;
        file.read_to_string(&mut text).map(|_| text)
    };
    for name in [
        "folder/file",
        "link/file",
        "link/again",
        "folder/../link/again",
    ] {
        assert_eq!(read(name).unwrap(), "text", "{name}");
    }
    let path_alone = open_named(&at("link/again"), OFlags::PATH, 0).unwrap();
    assert!(path_alone.metadata().unwrap().is_file());
    for name in ["nothing", "link/nothing"] {
        assert_eq!(read(name).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
    symlink("round", at("round")).unwrap();
    assert_eq!(read("round").unwrap_err().raw_os_error(), Some(libc::ELOOP));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(at("link"), Some(54_321), None).unwrap();
        for name in ["link/file", "folder/again"] {
            let text = read(name).unwrap_err().to_string();
            assert!(text.contains("a link of user 54321"), "{text}");
        }
        assert!(Folder::open(&at("link")).is_err());
        assert!(Folder::of_file(&at("link/new")).is_err());
        assert!(Folder::create_own(&at("link/new"), 0o700).is_err());
        write_named(&at("link/new"), 0o600, |_| Ok(())).unwrap_err();
        assert!(!at("folder/new").exists());
    }
}

#[test]
fn descriptors_that_were_handed_over_are_opened_by_their_paths() {
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"text").unwrap();
    drop(writer);
    let path = format!("/dev/fd/{}", reader.as_raw_fd());
    let mut file = open_named(Path::new(&path), OFlags::RDONLY, 0).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
}

#[test]
fn a_file_that_is_written_anew_keeps_its_mode_and_its_link() {
    let root = scratch();
    let at = |name: &str| root.path().join(name);
    std::fs::write(at("file"), "old").unwrap();
    set_mode(&at("file"), 0o604);
    symlink("file", at("link")).unwrap();
    write_named(&at("link"), 0o666, |file| file.write_all(b"new")).unwrap();
    assert_eq!(std::fs::read(at("file")).unwrap(), b"new");
    assert!(std::fs::symlink_metadata(at("link")).unwrap().is_symlink());
    let mode = std::fs::metadata(at("file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o604);
    // A file that is not regular is not replaced.
    write_named(Path::new("/dev/null"), 0o666, |file| file.write_all(b"new")).unwrap();
    // A file that is open already is written to at its end: its opener writes to it as well.
    let shared = File::options().append(true).open(at("file")).unwrap();
    let path = format!("/dev/fd/{}", shared.as_raw_fd());
    write_named(Path::new(&path), 0o666, |file| file.write_all(b"er")).unwrap();
    assert_eq!(std::fs::read(at("file")).unwrap(), b"newer");
}

#[test]
fn an_own_folder_may_lie_where_others_write() {
    let root = scratch();
    let open = root.path().join("open");
    std::fs::create_dir(&open).unwrap();
    set_mode(&open, 0o777);
    let folder = Folder::create_own(&open.join("own"), 0o700).unwrap();
    folder.create_inside(OsStr::new("part"), 0o700).unwrap();
    set_mode(&open.join("own/part"), 0o720);
    let refused = folder.create_inside(OsStr::new("part"), 0o700).unwrap_err();
    assert!(matches!(refused, FolderError::Writable { .. }), "{refused}");
    symlink(root.path(), open.join("own/link")).unwrap();
    folder.create_inside(OsStr::new("link"), 0o700).unwrap_err();
    let refused = Folder::create_own(&open, 0o700).unwrap_err();
    assert!(matches!(refused, FolderError::Writable { .. }), "{refused}");
}

#[test]
fn a_path_below_a_folder_may_have_any_length() {
    let root = scratch();
    let mut here = Folder::open(root.path()).unwrap();
    let mut path = PathBuf::new();
    let name = OsString::from("n".repeat(250));
    for _ in 0..20 {
        here = here.create_inside(&name, 0o700).unwrap();
        path.push(&name);
    }
    let found = Folder::open(root.path()).unwrap().beneath(&path).unwrap();
    assert_eq!(found.stat().unwrap().st_ino, here.stat().unwrap().st_ino);
}
