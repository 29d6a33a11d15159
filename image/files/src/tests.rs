//! The same tree in all three file systems: extracted, archived, walked; and damaged.

use crate::walk::{Visit, Wanted, resolve, walk};
use crate::{FilesError, Kind, Node, Options, Piece, Tree, archive, extract, open};
use rustix::fs::XattrFlags;
use sidecore_format::inner;
use sidecore_format::source::MemorySource;
use sidecore_random::Random;
use sidecore_sys::folder::Folder;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

/// Makes a tree with one of everything.
fn plant(root: &Path) {
    let numbers: Vec<u8> = (0..40_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::create_dir_all(root.join("usr/share/doc/one")).unwrap();
    fs::create_dir_all(root.join("empty")).unwrap();
    fs::write(root.join("usr/numbers"), &numbers).unwrap();
    fs::write(root.join("usr/share/small"), "small\n").unwrap();
    fs::write(root.join("usr/share/none"), "").unwrap();
    fs::write(root.join("usr/share/doc/one/copyright"), "all of it\n").unwrap();
    for index in 0..500 {
        fs::write(
            root.join(format!("usr/share/doc/f{index:03}")),
            vec![7; index * 3],
        )
        .unwrap();
    }
    fs::hard_link(root.join("usr/numbers"), root.join("usr/share/again")).unwrap();
    symlink("../numbers", root.join("usr/share/link")).unwrap();
    symlink("x".repeat(200), root.join("long")).unwrap();
    symlink("usr/share", root.join("share")).unwrap();
    let name = "n".repeat(255);
    fs::write(root.join("usr").join(&name), "a long name\n").unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&[9; 5000], 4 << 20).unwrap();
    // Larger than a part, and it ends in a hole.
    sparse.set_len(20 << 20).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let set = |path: &str, value: &[u8]| {
        let path = root.join(path);
        rustix::fs::setxattr(path, "user.note", value, XattrFlags::empty()).is_ok()
    };
    set("usr/share/small", b"a value");
    set("usr/share", &[5; 300]);
    let is_root = rustix::process::geteuid().is_root();
    for (path, mode) in [
        ("usr/numbers", 0o640),
        ("usr/share/small", if is_root { 0o4755 } else { 0o755 }),
        ("empty", 0o700),
    ] {
        fs::set_permissions(root.join(path), Permissions::from_mode(mode)).unwrap();
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for path in ["usr/numbers", "usr/share", "usr"] {
        File::open(root.join(path))
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
}

/// The parts of a file that a test compares: kind and mode, size, links, time, target or contents,
/// attribute.
type Facts = (u32, u64, u64, i64, Vec<u8>, Vec<u8>);

fn facts(root: &Path) -> BTreeMap<String, Facts> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let kind = metadata.file_type();
        let contents = if kind.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else if kind.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let size = if kind.is_dir() { 0 } else { metadata.len() };
        let links = if kind.is_dir() { 0 } else { metadata.nlink() };
        let mut value = vec![0; 1000];
        let len = rustix::fs::lgetxattr(&path, "user.note", &mut value[..]).unwrap_or(0);
        value.truncate(len);
        let name = path.strip_prefix(root).unwrap().display().to_string();
        if kind.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        let facts = (
            metadata.mode(),
            size,
            links,
            metadata.mtime(),
            contents,
            value,
        );
        if !name.is_empty() {
            found.insert(name, facts);
        }
    }
    found
}

/// The bytes of the file systems that a tree becomes, each with a name.
fn images(root: &Path, scratch: &Path) -> Vec<(String, Vec<u8>)> {
    let folder = Folder::open(root).unwrap();
    let mut images = Vec::new();
    for kind in inner::Kind::ALL {
        match inner::make(&folder, kind, scratch) {
            Ok(mut file) => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).unwrap();
                images.push((kind.name().to_owned(), bytes));
            }
            Err(error) => eprintln!("not checked: {error}"),
        }
    }
    for codec in ["gzip", "xz", "lz4", "zstd"] {
        let path = scratch.join(codec);
        let mut command = Command::new("mksquashfs");
        command
            .arg(root)
            .arg(&path)
            .args(["-quiet", "-no-progress", "-comp", codec]);
        match command.output() {
            Ok(output) if output.status.success() => {
                images.push((format!("squashfs of {codec}"), fs::read(path).unwrap()));
            }
            _ => eprintln!("not checked: squashfs of {codec}; install squashfs-tools"),
        }
    }
    // The older form, without extents, and files inside of inodes.
    for (name, options) in [("ext2", "^extents,^64bit"), ("inline", "inline_data")] {
        let path = scratch.join(name);
        File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let mut command = Command::new("mkfs.ext4");
        command.args(["-q", "-F", "-b", "1024", "-I", "256", "-O", options, "-d"]);
        match command.arg(root).arg(&path).output() {
            Ok(output) if output.status.success() => {
                images.push((format!("ext4 with {options}"), fs::read(path).unwrap()));
            }
            _ => eprintln!("not checked: ext4 with {options}; install e2fsprogs"),
        }
    }
    images
}

fn tree(bytes: Vec<u8>) -> Box<dyn Tree> {
    open(Arc::new(MemorySource::new(bytes))).unwrap()
}

fn all() -> Wanted {
    Wanted::new(&[]).unwrap()
}

#[test]
fn what_is_extracted_is_what_was_packed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    plant(&root);
    let expected = facts(&root);
    for (name, bytes) in images(&root, folder.path()) {
        let tree = tree(bytes);
        let out = tempfile::tempdir_in(folder.path()).unwrap();
        let into = Folder::open(out.path()).unwrap();
        let written = AtomicU64::new(0);
        let report = extract(&*tree, &mut all(), &into, Options::new(3), &written).unwrap();
        assert_eq!(report.problems, [], "{name}");
        assert_eq!((report.links, report.failed), (1, 0), "{name}");
        let mut found = facts(out.path());
        // ext4 has one of its own.
        if name.starts_with("ext4 with") {
            found.remove("lost+found");
        }
        for (path, expected) in &expected {
            // mkfs.ext4 1.47 itself cuts such a file off behind its last data.
            if name.contains("inline") && path == "sparse" {
                continue;
            }
            let found = found.get(path);
            assert!(
                found == Some(expected),
                "{name}: {path}: {:?}",
                found.map(|it| (it.0, it.1))
            );
        }
        assert_eq!(found.len(), expected.len(), "{name}");
        // The hole is one again; the bytes take their blocks.
        let blocks = fs::metadata(out.path().join("sparse")).unwrap().blocks();
        assert!(blocks < 4096, "{name}: {blocks} blocks");
        let same = |a: &str, b: &str| {
            let [a, b] = [a, b].map(|path| fs::metadata(out.path().join(path)).unwrap().ino());
            a == b
        };
        assert!(same("usr/numbers", "usr/share/again"), "{name}");
    }
}

#[test]
fn a_tar_holds_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    plant(&root);
    let expected = facts(&root);
    for (name, bytes) in images(&root, folder.path()) {
        let mut stream = Vec::new();
        let mut wanted = Wanted::new(&[b"/usr", b"long", b"sparse", b"share", b"empty"]).unwrap();
        archive(&*tree(bytes), &mut wanted, None, &mut stream).unwrap();
        let out = tempfile::tempdir_in(folder.path()).unwrap();
        fs::write(folder.path().join("tar"), &stream).unwrap();
        let mut command = Command::new("tar");
        command
            .args(["--xattrs", "-xpf"])
            .arg(folder.path().join("tar"));
        let status = command.arg("-C").arg(out.path()).status().unwrap();
        assert!(status.success(), "{name}");
        let found = facts(out.path());
        for (path, expected) in expected.iter().filter(|(path, _)| *path != "pipe") {
            if name.contains("inline") && path == "sparse" {
                continue;
            }
            assert!(found.get(path) == Some(expected), "{name}: {path}");
        }
    }
}

#[test]
fn patterns_mean_files_and_what_lies_below() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    plant(&root);
    let (_, bytes) = images(&root, folder.path()).swap_remove(0);
    let tree = tree(bytes);
    let meant = |patterns: &[&[u8]]| {
        let mut wanted = Wanted::new(patterns).unwrap();
        let mut found = Vec::new();
        walk(&*tree, &mut wanted, &mut |visit: Visit<'_>| {
            if visit.wanted {
                found.push(String::from_utf8_lossy(visit.path).into_owned());
            }
            Ok(())
        })
        .unwrap();
        (
            found,
            wanted.missing().map(str::to_owned).collect::<Vec<_>>(),
        )
    };
    let none: [&str; 0] = [];
    let (found, missing) = meant(&[b"usr/share/doc/one", b"nowhere"]);
    assert_eq!(found, ["usr/share/doc/one", "usr/share/doc/one/copyright"]);
    assert_eq!(missing, ["nowhere"]);
    let (found, missing) = meant(&[b"**/copyright", b"/usr/share/doc/f00[12]"]);
    let mut found: Vec<_> = found.iter().map(|it| &**it).collect();
    found.sort_unstable();
    let doc = "usr/share/doc";
    let expected = ["f001", "f002", "one/copyright"].map(|it| format!("{doc}/{it}"));
    assert_eq!(found, expected);
    assert_eq!(missing, none);
    // One name: no slash.
    assert_eq!(meant(&[b"usr/*/one"]).1, ["usr/*/one"]);
    assert!(matches!(
        Wanted::new(&[b"usr/../etc"]),
        Err(FilesError::Outside(_))
    ));
    let found = |path: &[u8]| resolve(&*tree, path).unwrap().map(|(path, _)| path);
    assert_eq!(found(b"share/link").as_deref(), Some(&b"usr/numbers"[..]));
    assert_eq!(
        found(b"/../../share/doc/../small").as_deref(),
        Some(&b"usr/share/small"[..])
    );
    assert_eq!(found(b"share/nothing"), None);
}

/// Nothing is replaced unasked, and nothing outside is reached by links that lie in the folder.
#[test]
fn what_is_there_stays_and_links_lead_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    plant(&root);
    let (_, bytes) = images(&root, folder.path()).swap_remove(0);
    let tree = tree(bytes);
    let out = folder.path().join("out");
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("small"), "precious").unwrap();
    fs::create_dir_all(out.join("usr")).unwrap();
    symlink(&outside, out.join("usr/share")).unwrap();
    symlink(outside.join("small"), out.join("sparse")).unwrap();
    fs::write(out.join("usr/numbers"), "mine").unwrap();
    let into = Folder::open(&out).unwrap();
    let mut options = Options::new(2);
    let run = |options| extract(&*tree, &mut all(), &into, options, &AtomicU64::new(0)).unwrap();
    let report = run(options);
    let failed: Vec<_> = report.problems.iter().map(|(path, _)| &**path).collect();
    assert!(
        failed.iter().any(|path| path.ends_with("usr/numbers")),
        "{failed:?}"
    );
    assert_eq!(fs::read(out.join("usr/numbers")).unwrap(), b"mine");
    options.overwrite = true;
    run(options);
    assert!(fs::read(out.join("usr/numbers")).unwrap().len() > 100_000);
    assert!(fs::symlink_metadata(out.join("sparse")).unwrap().is_file());
    // A link in the place of a directory is not followed, whatever is replaced.
    let mut names = fs::read_dir(&outside).unwrap();
    assert_eq!(names.next().unwrap().unwrap().file_name(), "small");
    assert!(names.next().is_none());
    assert_eq!(fs::read(outside.join("small")).unwrap(), b"precious");
}

/// A name that is taken is no first name: what has it is another file.
#[test]
fn further_names_are_not_linked_to_a_file_that_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("a"), "of the image").unwrap();
    for name in ["b", "c", "d"] {
        fs::hard_link(root.join("a"), root.join(name)).unwrap();
    }
    let (_, bytes) = images(&root, folder.path()).swap_remove(0);
    let tree = tree(bytes);
    let out = folder.path().join("out");
    fs::create_dir_all(out.join("b")).unwrap();
    fs::write(out.join("a"), "mine").unwrap();
    let into = Folder::open(&out).unwrap();
    let mut options = Options::new(2);
    let run = |options| extract(&*tree, &mut all(), &into, options, &AtomicU64::new(0)).unwrap();
    let report = run(options);
    assert_eq!(fs::read(out.join("a")).unwrap(), b"mine");
    assert_eq!(fs::read(out.join("c")).unwrap(), b"of the image");
    let [c, d] = ["c", "d"].map(|name| fs::metadata(out.join(name)).unwrap());
    assert_eq!((c.ino(), c.nlink()), (d.ino(), 2));
    let counts = (report.files, report.links, report.failed);
    assert_eq!(counts, (1, 1, 2), "{:?}", report.problems);
    // All replaced but the directory: one file again, and no other names.
    options.overwrite = true;
    let report = run(options);
    let counts = (report.files, report.links, report.failed);
    assert_eq!(counts, (1, 2, 1), "{:?}", report.problems);
    let [a, d] = ["a", "d"].map(|name| fs::metadata(out.join(name)).unwrap());
    assert_eq!((a.ino(), a.nlink()), (d.ino(), 3));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 4);
}

/// A tree of functions.
pub(crate) struct Made {
    pub(crate) names: fn(u64) -> Vec<(Vec<u8>, u64)>,
    pub(crate) node: fn(u64) -> (Kind, u64),
    /// Called with a file's number before its contents, all of them sevens.
    pub(crate) before: Box<dyn Fn(u64) + Send + Sync>,
}

impl Tree for Made {
    fn name(&self) -> &'static str {
        "made"
    }

    fn root(&self) -> u64 {
        0
    }

    fn node(&self, id: u64) -> Result<Node, FilesError> {
        let (kind, size_bytes) = (self.node)(id);
        Ok(Node {
            id,
            kind,
            permissions: 0o755,
            links: 1,
            uid: 0,
            gid: 0,
            size_bytes,
            mtime_s: 0,
            mtime_ns: 0,
            device: (0, 0),
        })
    }

    fn list(&self, directory: &Node, visit: &mut crate::Names<'_>) -> Result<(), FilesError> {
        let names = (self.names)(directory.id);
        names.iter().try_for_each(|(name, id)| visit(name, *id))
    }

    fn link(&self, _: &Node) -> Result<Vec<u8>, FilesError> {
        Ok(Vec::new())
    }

    fn contents(
        &self,
        node: &Node,
        range: std::ops::Range<u64>,
        sink: &mut crate::Sink<'_>,
    ) -> Result<(), FilesError> {
        (self.before)(node.id);
        let bytes = vec![7; usize::try_from(range.end - range.start).unwrap()];
        sink(Piece::Bytes(&bytes)).map_err(FilesError::Output)
    }

    fn attributes(&self, node: &Node) -> Result<Vec<crate::Attribute>, FilesError> {
        Ok(match node.kind {
            // The system takes no name of this length.
            Kind::Fifo => vec![(vec![b'x'; 300], Vec::new())],
            _ => Vec::new(),
        })
    }
}

#[test]
fn a_pipe_whose_attributes_fail_is_removed_again() {
    let tree = Made {
        names: |_| vec![(b"pipe".to_vec(), 1)],
        node: |id| match id {
            0 => (Kind::Directory, 0),
            _ => (Kind::Fifo, 0),
        },
        before: Box::new(|_| ()),
    };
    let out = tempfile::tempdir().unwrap();
    let into = Folder::open(out.path()).unwrap();
    let options = Options::new(1);
    let report = extract(&tree, &mut all(), &into, options, &AtomicU64::new(0)).unwrap();
    let counts = (report.failed, report.others);
    assert_eq!(counts, (1, 0), "{:?}", report.problems);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

/// A small file `a`, number 1, and a large one, `b`.
pub(crate) fn small_and_large(before: impl Fn(u64) + Send + Sync + 'static) -> Made {
    Made {
        names: |_| vec![(b"a".to_vec(), 1), (b"b".to_vec(), 2)],
        node: |id| match id {
            0 => (Kind::Directory, 0),
            1 => (Kind::File, 100),
            _ => (Kind::File, 24 << 20),
        },
        before: Box::new(before),
    }
}

/// The limit is hit while the parts of another file wait.
#[test]
fn a_file_whose_parts_are_left_out_does_not_keep_its_name() {
    let out = tempfile::tempdir().unwrap();
    let large = out.path().join("b");
    let tree = small_and_large(move |id| {
        while id == 1 && !large.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let into = Folder::open(out.path()).unwrap();
    let mut options = Options::new(1);
    options.bytes_max = 10;
    let result = extract(&tree, &mut all(), &into, options, &AtomicU64::new(0));
    assert!(matches!(result, Err(FilesError::Limit(10))));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

/// Two long names at each level: the paths of what waits have 13 GB together.
#[test]
fn a_deep_chain_of_directories_ends_a_walk_and_not_memory() {
    let tree = Made {
        names: |id| match id % 2 == 0 && id < 20_000 {
            true => vec![(vec![b'm'; 255], id + 2), (vec![b'n'; 255], id + 1)],
            false => Vec::new(),
        },
        node: |_| (Kind::Directory, 0),
        before: Box::new(|_| ()),
    };
    let (mut count, mut longest) = (0_u64, 0);
    let walked = walk(&tree, &mut all(), &mut |visit| {
        count += 1;
        longest = longest.max(visit.path.len());
        Ok(())
    });
    assert!(matches!(walked, Err(FilesError::TooDeep)), "{walked:?}");
    assert!(count > 1000 && longest > 256_000 - 256, "{count} {longest}");
}

#[test]
fn no_more_is_written_than_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    plant(&root);
    let (_, bytes) = images(&root, folder.path()).swap_remove(0);
    let out = tempfile::tempdir().unwrap();
    let into = Folder::open(out.path()).unwrap();
    let mut options = Options::new(2);
    options.bytes_max = 100_000;
    let result = extract(
        &*tree(bytes),
        &mut all(),
        &into,
        options,
        &AtomicU64::new(0),
    );
    assert!(matches!(result, Err(FilesError::Limit(100_000))));
}

/// Everything that can be asked of a tree, with bounds, for damaged ones.
fn exhaust(tree: &dyn Tree) {
    let mut files: Vec<(Vec<u8>, Node)> = Vec::new();
    let _ = walk(tree, &mut all(), &mut |visit| {
        files.push((visit.path.to_vec(), *visit.node));
        match files.len() > 2000 {
            true => Err(FilesError::TooMany),
            false => Ok(()),
        }
    });
    for (_, node) in &files {
        let _ = tree.attributes(node);
        if node.kind == Kind::Link {
            let _ = tree.link(node);
        }
        let end = node.size_bytes.min(1 << 20);
        let mut done = 0;
        let _ = tree.contents(node, 0..end, &mut |piece| {
            done += match piece {
                Piece::Bytes(bytes) => u64::try_from(bytes.len()).unwrap(),
                Piece::Hole(len) => len,
            };
            assert!(done <= end, "more than was asked for");
            Ok(())
        });
    }
}

#[test]
fn damaged_trees_give_errors_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/one"), vec![1; 3000]).unwrap();
    fs::write(root.join("a/b/two"), "two").unwrap();
    fs::hard_link(root.join("a/one"), root.join("a/again")).unwrap();
    symlink("a/one", root.join("link")).unwrap();
    let many: Vec<u8> = (0..60_000_u32)
        .flat_map(|it| (it * 7).to_le_bytes())
        .collect();
    fs::write(root.join("many"), many).unwrap();
    let seed = 38;
    let mut random = Random::new(seed);
    for (name, bytes) in images(&root, folder.path()) {
        eprintln!("{name}, seed {seed}");
        let len = u64::try_from(bytes.len()).unwrap();
        // A copy of a large one takes longer than all that is read of it.
        let rounds = if len < 4 << 20 { 200 } else { 30 };
        for round in 0..rounds {
            let mut bytes = bytes.clone();
            for _ in 0..=random.below(6) {
                // Metadata stand at the ends; zeros in the middle of ext4 tell nothing.
                let span = if round % 2 == 0 { 4096 } else { len };
                let from = if round % 4 < 2 {
                    0
                } else {
                    len - span.min(len)
                };
                let at = from + random.below(span.min(len));
                bytes[usize::try_from(at).unwrap()] = random.bits().to_le_bytes()[0];
            }
            if round % 10 == 9 {
                bytes.truncate(usize::try_from(random.below(len)).unwrap());
            }
            if let Ok(tree) = open(Arc::new(MemorySource::new(bytes))) {
                exhaust(&*tree);
            }
        }
    }
}
