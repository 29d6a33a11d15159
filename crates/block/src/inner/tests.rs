//! File systems made of small trees, by the programs themselves.

use super::*;
use std::io::Read;

fn tree() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let text: Vec<u8> = (0..200_000_u32)
        .flat_map(|at| at.wrapping_mul(at).to_le_bytes())
        .collect();
    for name in ["one", "two", "deep/three", "deep/er/four"] {
        let path = path.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &text).unwrap();
    }
    std::os::unix::fs::symlink("one", path.join("link")).unwrap();
    directory
}

fn bytes(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn copies_of_a_file_are_stored_once() {
    let tree = tree();
    let file = make(tree.path(), Kind::Erofs, Path::new("/tmp")).unwrap();
    let stored = file.metadata().unwrap().len();
    assert!(
        stored < 900_000,
        "four copies of 800,000 bytes take {stored}"
    );
}

#[test]
fn a_name_of_255_bytes_is_refused_by_erofs_and_taken_by_squashfs() {
    let tree = tree();
    let name = "n".repeat(255);
    fs::write(tree.path().join("deep").join(&name), b"x").unwrap();
    let error = make(tree.path(), Kind::Erofs, Path::new("/tmp")).unwrap_err();
    assert!(
        matches!(&error, InnerError::LongName { path } if path.ends_with(&name)),
        "{error}"
    );
    let file = make(tree.path(), Kind::Squashfs, Path::new("/tmp")).unwrap();
    let found = bytes(file);
    assert!(found.windows(255).any(|window| window == name.as_bytes()));
}

#[test]
fn a_trees_uuid_is_its_own_and_goes_with_it() {
    let (first, second) = (tree(), tree());
    let uuid = |tree: &Path| tree::uuid(tree, &tree::entries(tree).unwrap());
    let text = uuid(first.path());
    assert_eq!((text.len(), text.as_bytes()[14]), (36, b'8'), "{text}");
    assert_eq!(text, uuid(second.path()));
    fs::write(second.path().join("one"), b"shorter").unwrap();
    assert_ne!(text, uuid(second.path()));
}
